// emsctl status, nodes, node rm, view, view accept-loss, server-stats: what the controller and the
// servers say.
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "cluster/controller_client.h"
#include "cluster/while_starting.h"
#include "common/command_line.h"
#include "mp_sdk/client.h"
#include "proto/controller.pb.h"
#include "tools/emsctl/cluster_text.h"
#include "tools/emsctl/context.h"
#include "tools/emsctl/output.h"

namespace ems::emsctl {
namespace {

using Json = nlohmann::ordered_json;

ControllerClient Controller(const Context& context) {
  return ControllerClient(context.controller, "emsctl", context.joined.get());
}

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
  if (const Status s = controller.Refresh(&cache, deadline); !s.ok())
    return Unreachable(context, s);
  if (const Status s = controller.ListNodes(&nodes, deadline); !s.ok()) {
    return Unreachable(context, s);
  }
  const ViewCache::View view = cache.view();
  const ViewCache::Namespaces namespaces = cache.namespaces();
  std::optional<HitCounts> hits;
  if (view != nullptr) hits = AskHits(context, *view, *namespaces);
  const ClusterSnapshot snapshot{.view = view.get(),
                                 .nodes = &nodes,
                                 .namespaces = namespaces.get(),
                                 .hits = hits ? &*hits : nullptr};
  const int shown = Show(context, StatusJson(snapshot), StatusText(snapshot));
  const Health health = HealthOf(snapshot);
  const bool bad = NeedsAnOperator(snapshot) || (check && health != Health::kOk);
  return bad ? kExitFailed : shown;
}

int RunNodes(const Context& context) {
  ControllerClient controller = Controller(context);
  v1::ListNodesReply nodes;
  if (const Status s = controller.ListNodes(&nodes, context.deadline()); !s.ok()) {
    return Unreachable(context, s);
  }
  return Show(context, NodesJson(nodes), NodesText(nodes));
}

int RunNodeRm(const Context& context, const std::string& name) {
  ControllerClient controller = Controller(context);
  const Status s = WhileStarting(
      context.deadline(), [&](Deadline until) { return controller.RemoveNode(name, until); });
  if (s.ok()) return ShowDone(context, "removed", name);
  return Complain(context, fmt::format("server {}", name), s);
}

int RunView(const Context& context, bool with_slots) {
  ControllerClient controller = Controller(context);
  ViewCache cache;
  if (const Status s = controller.Refresh(&cache, context.deadline()); !s.ok()) {
    return Unreachable(context, s);
  }
  const ViewCache::View view = cache.view();
  if (view == nullptr) {
    return Complain(context, Error(StatusCode::kUnavailable,
                                   "the controller has no view yet: no server has registered"));
  }
  return Show(context, ViewJson(*view, with_slots), ViewText(*view, with_slots));
}

int RunAcceptLoss(const Context& context) {
  ControllerClient controller = Controller(context);
  const Status s = WhileStarting(context.deadline(),
                                 [&](Deadline until) { return controller.AcceptLoss(until); });
  if (!s.ok()) return Complain(context, "accept-loss", s);
  return ShowDone(context, "accepted", "loss");
}

int RunAcceptAhead(const Context& context) {
  ControllerClient controller = Controller(context);
  const Status s = WhileStarting(context.deadline(),
                                 [&](Deadline until) { return controller.AcceptAhead(until); });
  if (!s.ok()) return Complain(context, "accept-ahead", s);
  return ShowDone(context, "accepted", "servers that are ahead");
}

int RunServerStats(const Context& context, const std::string& node) {
  ClientOptions options;
  options.controller = context.controller;
  options.name_space = context.name_space;
  options.start_timeout = context.timeout();
  const auto client = Client::Connect(options);
  if (!client.ok()) return Unreachable(context, client.status());
  if (const Status s = context.joined->Join((*client)->views().cluster()); !s.ok())
    return Unreachable(context, s);
  const Result<std::string> stats = (*client)->ServerStats(node, context.timeout());
  if (!stats.ok()) {
    return Complain(
        context, fmt::format("server {}", node),
        stats.status().code() == StatusCode::kNotFound
            ? Error(StatusCode::kNotFound, "no such server in the view; `emsctl nodes` lists them")
            : stats.status());
  }
  const Json json = Json::parse(*stats, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) {
    return Complain(
        context, Error(StatusCode::kInternal, "server {} sent statistics that are not JSON", node));
  }
  return PrintJson(json) ? kExitOk : kExitFailed;
}

}  // namespace

void AddClusterCommands(Command* program, const Context* context) {
  const auto flag = std::make_shared<bool>(false);  // of the one command that is run
  const auto name = std::make_shared<std::string>();

  Command* status = program->AddCommand("status", "Health at a glance, and what to do about it");
  status->AddFlag(
      "--check", flag.get(),
      "Exit 1 unless the health is OK; without it, when an operator has to act: there are NO "
      "SERVERS, the view is FROZEN, Puts wait for a server without end, a server is ahead of the "
      "controller, or the controller's data_dir is an older copy");
  status->SetFooter(
      "Health: OK · DEGRADED a server is down, has not installed the view for two heartbeats, is "
      "waited for longer than a lease and 2 s, or "
      "is ahead of the controller, whose data_dir may be an older copy · FROZEN more than half "
      "vanished · NO SERVERS");
  status->SetRun([=] { return RunStatus(*context, *flag); });

  Command* nodes = program->AddCommand("nodes", "The servers: state, slots, memory, view");
  nodes->SetRun([=] { return RunNodes(*context); });

  Command* node = program->AddCommand("node", "Change one server");
  Command* rm = node->AddCommand("rm", "Forget a server that is down for good");
  rm->SetFooter(
      "Refused while it is alive, and while Puts wait for it: accept the loss first, or nothing "
      "would say whom they wait for.");
  rm->AddOption("name", name.get(), "Name of the server", {.required = true});
  rm->SetRun([=] { return RunNodeRm(*context, *name); });

  Command* view = program->AddCommand("view", "Who owns which part of the keys");
  view->AddFlag("--slots", flag.get(), "Also list the slots of each server");
  Command* accept = view->AddCommand(
      "accept-loss", "Thaw a view that froze because more than half of the servers vanished");
  accept->SetFooter(
      "Only when the vanished servers have stopped, or their machines have: one that is merely cut "
      "off "
      "from the controller may still take Puts. What they held is lost (misses); the others take "
      "over "
      "their slots.");
  accept->SetRun([=] { return RunAcceptLoss(*context); });
  Command* ahead = view->AddCommand(
      "accept-ahead", "Go on beyond the views of servers that this controller knows nothing of");
  ahead->SetFooter(
      "For a controller whose data_dir is an older copy. Nothing that servers store is kept.");
  ahead->SetRun([=] { return RunAcceptAhead(*context); });
  view->SetRun([=] { return RunView(*context, *flag); });

  Command* stats = program->AddCommand("server-stats", "Statistics of one server, as JSON");
  stats->AddOption("node", name.get(), "Name of the server", {.required = true});
  stats->SetRun([=] { return RunServerStats(*context, *name); });
}

}  // namespace ems::emsctl
