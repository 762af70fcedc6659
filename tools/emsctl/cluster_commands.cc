// emsctl status, nodes, node rm, view, view accept-loss, server-stats: what the controller and the
// servers say.
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "common/command_line.h"
#include "mp_controller/view/controller_client.h"
#include "mp_sdk/client.h"
#include "proto/controller.pb.h"
#include "tools/emsctl/cluster_text.h"
#include "tools/emsctl/context.h"
#include "tools/emsctl/output.h"

namespace ems::emsctl {
namespace {

using Json = nlohmann::ordered_json;

ControllerClient Controller(const Context& context) {
  return ControllerClient(context.controller, "emsctl");
}

int Unreachable(const Status& status) { return Complain("cannot ask the controller", status); }

// Asks each live server; nothing when none answers (no namespace to connect with, servers of
// another version).
std::optional<HitCounts> AskHits(const Context& context, const DhtView& view,
                                 const NamespaceTable& namespaces) {
  if (namespaces.by_id.empty() || view.nodes().empty()) return std::nullopt;
  ClientOptions options;
  options.controller = context.controller;
  options.name_space = namespaces.by_id.begin()->second.name;
  options.start_timeout = context.timeout();
  const auto client = Client::Connect(options);
  if (!client.ok()) return std::nullopt;
  std::optional<HitCounts> total;
  const Deadline deadline = context.deadline();
  for (const NodeInfo& node : view.nodes()) {
    if (deadline.Passed()) break;
    const Result<std::string> stats = (*client)->ServerStats(node.name, deadline.Remaining());
    const std::optional<HitCounts> one = stats.ok() ? HitsOf(*stats) : std::nullopt;
    if (!one) continue;
    if (!total) total = HitCounts{};
    total->gets += one->gets;
    total->hits += one->hits;
  }
  return total;
}

int RunStatus(const Context& context, bool check) {
  ControllerClient controller = Controller(context);
  ViewCache cache;
  const Deadline deadline = context.deadline();
  v1::ListNodesReply nodes;
  if (const Status s = controller.Refresh(&cache, deadline); !s.ok()) return Unreachable(s);
  if (const Status s = controller.ListNodes(&nodes, deadline); !s.ok()) {
    return Unreachable(s);
  }
  const ViewCache::View view = cache.view();
  const ViewCache::Namespaces namespaces = cache.namespaces();
  std::optional<HitCounts> hits;
  if (view != nullptr) hits = AskHits(context, *view, *namespaces);
  const ClusterSnapshot snapshot{.view = view.get(),
                                 .nodes = &nodes,
                                 .namespaces = namespaces.get(),
                                 .hits = hits ? &*hits : nullptr};
  const bool printed = context.json ? PrintJson(StatusJson(snapshot)) : Print(StatusText(snapshot));
  if (!printed) return kExitFailed;
  return check && HealthOf(snapshot) != Health::kOk ? kExitFailed : kExitOk;
}

int RunNodes(const Context& context) {
  ControllerClient controller = Controller(context);
  v1::ListNodesReply nodes;
  if (const Status s = controller.ListNodes(&nodes, context.deadline()); !s.ok()) {
    return Unreachable(s);
  }
  const bool printed = context.json ? PrintJson(NodesJson(nodes)) : Print(NodesText(nodes));
  return printed ? kExitOk : kExitFailed;
}

int Done(const Context& context, std::string_view verb, const std::string& name) {
  const bool printed = context.json ? PrintJson(Json::object({{std::string(verb), name}}))
                                    : Print(fmt::format("{} {}\n", verb, name));
  return printed ? kExitOk : kExitFailed;
}

int RunNodeRm(const Context& context, const std::string& name) {
  ControllerClient controller = Controller(context);
  const Status s = controller.RemoveNode(name, context.deadline());
  if (s.ok()) return Done(context, "removed", name);
  return Complain(fmt::format("server {}", name), s);
}

int RunView(const Context& context, bool with_slots) {
  ControllerClient controller = Controller(context);
  ViewCache cache;
  if (const Status s = controller.Refresh(&cache, context.deadline()); !s.ok()) {
    return Unreachable(s);
  }
  const ViewCache::View view = cache.view();
  if (view == nullptr) return Complain("the controller has no view yet: no server has registered");
  const bool printed =
      context.json ? PrintJson(ViewJson(*view, with_slots)) : Print(ViewText(*view, with_slots));
  return printed ? kExitOk : kExitFailed;
}

int RunAcceptLoss(const Context& context) {
  ControllerClient controller = Controller(context);
  const Status s = controller.AcceptLoss(context.deadline());
  if (!s.ok()) return Complain("accept-loss", s);
  return Done(context, "accepted", "loss");
}

int RunServerStats(const Context& context, const std::string& node) {
  ClientOptions options;
  options.controller = context.controller;
  options.name_space = context.name_space;
  options.start_timeout = context.timeout();
  const auto client = Client::Connect(options);
  if (!client.ok()) return Unreachable(client.status());
  const Result<std::string> stats = (*client)->ServerStats(node, context.timeout());
  if (!stats.ok()) {
    return Complain(
        fmt::format("server {}", node),
        stats.status().code() == StatusCode::kNotFound
            ? Error(StatusCode::kNotFound, "no such server in the view; `emsctl nodes` lists them")
            : stats.status());
  }
  const Json json = Json::parse(*stats, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) {
    return Complain(fmt::format("server {} sent statistics that are not JSON", node));
  }
  return PrintJson(json) ? kExitOk : kExitFailed;
}

}  // namespace

void AddClusterCommands(Command* program, const Context* context) {
  const auto flag = std::make_shared<bool>(false);  // of the one command that is run
  const auto name = std::make_shared<std::string>();

  Command* status = program->AddCommand("status", "Health at a glance, and what to do about it");
  status->AddFlag("--check", flag.get(), "Exit 1 unless the health is OK");
  status->SetFooter(
      "Health: OK · DEGRADED a server is down · FROZEN more than half vanished · NO SERVERS");
  status->SetRun([=] { return RunStatus(*context, *flag); });

  Command* nodes = program->AddCommand("nodes", "The servers: state, slots, memory, view");
  nodes->SetRun([=] { return RunNodes(*context); });

  Command* node = program->AddCommand("node", "Change one server");
  Command* rm = node->AddCommand("rm", "Forget a server that is down for good");
  rm->AddOption("name", name.get(), "Name of the server", {.required = true});
  rm->SetRun([=] { return RunNodeRm(*context, *name); });

  Command* view = program->AddCommand("view", "Who owns which part of the keys");
  view->AddFlag("--slots", flag.get(), "Also list the slots of each server");
  Command* accept = view->AddCommand(
      "accept-loss", "Thaw a view that froze because more than half of the servers vanished");
  accept->SetFooter(
      "What the vanished servers held is lost (misses); the others take over their slots.");
  accept->SetRun([=] { return RunAcceptLoss(*context); });
  view->SetRun([=] { return RunView(*context, *flag); });

  Command* stats = program->AddCommand("server-stats", "Statistics of one server, as JSON");
  stats->AddOption("node", name.get(), "Name of the server", {.required = true});
  stats->SetRun([=] { return RunServerStats(*context, *name); });
}

}  // namespace ems::emsctl
