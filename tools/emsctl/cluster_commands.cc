// emsctl status, node list, show, set, drain and delete, view show, accept-loss and accept-ahead:
// what the controller and the servers say.
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "cluster/controller_client.h"
#include "cluster/while_starting.h"
#include "common/bytes.h"
#include "common/command_line.h"
#include "mp_sdk/client.h"
#include "proto/controller.pb.h"
#include "tools/emsctl/ask_servers.h"
#include "tools/emsctl/cluster_text.h"
#include "tools/emsctl/context.h"
#include "tools/emsctl/output.h"
#include "tools/emsctl/rollout/await_servers.h"

namespace ems::emsctl {
namespace {

using Json = nlohmann::ordered_json;

ControllerClient Controller(const Context& context) {
  return ControllerClient(context.controller, "emsctl", context.joined.get());
}

// Of all servers that answer; nothing when none does (no namespace to connect with, servers of
// another version).
std::optional<HitCounts> AskHits(const Context& context, const DhtView& view,
                                 const NamespaceTable& namespaces) {
  const Deadline deadline = context.deadline();
  const auto client = ConnectToAny(context, namespaces, deadline);
  std::optional<HitCounts> total;
  for (const ServerStats& one : AskServers(context, client, view, deadline)) {
    const std::optional<HitCounts> hits = one.json.ok() ? HitsOf(*one.json) : std::nullopt;
    if (!hits) continue;
    if (!total) total = HitCounts{};
    total->gets += hits->gets;
    total->hits += hits->hits;
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

int RunNodeList(const Context& context) {
  ControllerClient controller = Controller(context);
  v1::ListNodesReply nodes;
  if (const Status s = controller.ListNodes(&nodes, context.deadline()); !s.ok()) {
    return Unreachable(context, s);
  }
  return Show(context, NodesJson(nodes), NodesText(nodes));
}

// What one setting of `node set` says. Errors: kInvalidArgument
Result<uint64_t> ParseDramSetting(std::string_view setting) {
  constexpr std::string_view kKey = "dram.bytes=";
  if (!setting.starts_with(kKey)) {
    return Error(StatusCode::kInvalidArgument,
                 "\"{}\": what can be set is dram.bytes=BYTES or dram.bytes=default",
                 Printable(setting));
  }
  const std::string_view value = setting.substr(kKey.size());
  if (value == "default") return uint64_t{0};
  EMS_ASSIGN_OR_RETURN(const uint64_t bytes, ParseBytes(value));
  if (bytes == 0)
    return Error(StatusCode::kInvalidArgument, "dram.bytes=0: at least 16 MiB; or default");
  return bytes;
}

int RunNodeSet(const Context& context, const std::string& name, const std::string& setting) {
  const Result<uint64_t> bytes = ParseDramSetting(setting);
  if (!bytes.ok()) return Complain(context, bytes.status());
  ControllerClient controller = Controller(context);
  const Status s = WhileStarting(
      context.deadline(), [&](Deadline until) { return controller.SetNode(name, *bytes, until); });
  if (s.ok()) return ShowDone(context, "set", name);
  return Complain(context, fmt::format("server {}", name), s);
}

int RunNodeDrain(const Context& context, const std::string& name,
                 const std::optional<double>& wait_seconds, bool cancel) {
  ControllerClient controller = Controller(context);
  const std::string what = fmt::format("server {}", name);
  const Status s = WhileStarting(context.deadline(), [&](Deadline until) {
    return controller.DrainNode(name, cancel, until);
  });
  if (!s.ok()) return Complain(context, what, s);
  const Patience patience{.call = context.timeout(),
                          .whole = std::chrono::duration_cast<Duration>(
                              std::chrono::duration<double>(wait_seconds.value_or(0)))};
  if (cancel) {
    const Status settled = wait_seconds ? AwaitSettled(&controller, name, patience) : OkStatus();
    if (!settled.ok()) return Complain(context, what, settled);
    return ShowChange(context, Json::object({{"drain_cancelled", name}}),
                      fmt::format("the drain of {} is cancelled\n", name));
  }
  if (!wait_seconds) return ShowDone(context, "draining", name);
  const Status drained = AwaitDrained(&controller, name, patience);
  if (!drained.ok()) return Complain(context, what, drained);
  return ShowDone(context, "drained", name);
}

int RunNodeDelete(const Context& context, const std::string& name) {
  ControllerClient controller = Controller(context);
  const Status s = WhileStarting(
      context.deadline(), [&](Deadline until) { return controller.RemoveNode(name, until); });
  if (s.ok()) return ShowDone(context, "deleted", name);
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

// Its statistics. Errors: those of the way to it    kInternal  it sent something else
Result<Json> StatsOf(const Context& context, const std::string& name) {
  const Deadline deadline = context.deadline();
  ControllerClient controller = Controller(context);
  ViewCache cache;
  EMS_RETURN_IF_ERROR(controller.Refresh(&cache, deadline));
  EMS_ASSIGN_OR_RETURN(const auto client, ConnectToAny(context, *cache.namespaces(), deadline));
  EMS_ASSIGN_OR_RETURN(const std::string text, client->ServerStats(name, deadline.Remaining()));
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return Error(StatusCode::kInternal, "its statistics are not JSON");
  return json;
}

int RunNodeShow(const Context& context, const std::string& name) {
  ControllerClient controller = Controller(context);
  v1::ListNodesReply nodes;
  if (const Status s = controller.ListNodes(&nodes, context.deadline()); !s.ok())
    return Unreachable(context, s);
  const auto others =
      std::remove_if(nodes.mutable_nodes()->begin(), nodes.mutable_nodes()->end(),
                     [&](const v1::NodeStatus& one) { return one.node().name() != name; });
  nodes.mutable_nodes()->erase(others, nodes.mutable_nodes()->end());
  const std::string what = fmt::format("server {}", name);
  if (nodes.nodes().empty()) {
    return Complain(context, what,
                    Error(StatusCode::kNotFound, "no such server; `emsctl node list` shows them"));
  }
  Json json = NodesJson(nodes)[0];
  std::string text = NodesText(nodes);
  int exit_code = kExitOk;
  json["stats"] = nullptr;
  if (nodes.nodes(0).node().state() == v1::NODE_LIVE) {
    const Result<Json> stats = StatsOf(context, name);
    if (stats.ok()) {
      json["stats"] = *stats;
      text += "\n" + StatsText(*stats);
    } else {
      exit_code = Complain(context, what, stats.status());
    }
  }
  const int shown = Show(context, json, text);
  return exit_code == kExitOk ? shown : exit_code;
}

}  // namespace

void AddClusterCommands(Command* program, const Context* context) {
  const auto flag = std::make_shared<bool>(false);  // of the one command that is run
  const auto name = std::make_shared<std::string>();
  const auto setting = std::make_shared<std::string>();
  const auto wait = std::make_shared<std::optional<double>>();

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

  Command* node = program->AddCommand("node", "List, show, set, drain and forget servers");
  Command* list = node->AddCommand("list", "All servers: state, slots, memory, view");
  list->SetRun([=] { return RunNodeList(*context); });
  Command* show = node->AddCommand("show", "One server, with all its statistics");
  show->AddOption("name", name.get(), "Name of the server", {.required = true});
  show->SetRun([=] { return RunNodeShow(*context, *name); });
  Command* set = node->AddCommand("set", "Give a running server more memory, or less");
  set->SetFooter(
      "Takes effect within a heartbeat, without a restart; what is in the way is evicted, the "
      "coldest first. It holds until it is set again, also when the server or the controller "
      "restarts; default: what the server's configuration says. The server keeps its slots. With "
      "dram.elastic it is the most that the pool grows to. `node list` shows what it has.");
  set->AddOption("name", name.get(), "Name of the server", {.required = true});
  set->AddOption("setting", setting.get(), "dram.bytes=8GiB, or dram.bytes=default",
                 {.required = true});
  set->SetRun([=] { return RunNodeSet(*context, *name, *setting); });
  Command* drain = node->AddCommand("drain", "Take a server out without losing what it has");
  drain->SetFooter(
      "Its slots go to others while it serves on, and these fetch what it has: it is DRAINED when "
      "nobody does any more, or the controller's drain_timeout_s after its slots have gone. Then "
      "it "
      "can be stopped. It stays drained, also when it is started again, until --cancel gives it "
      "slots. Refused where no other server could have them.");
  drain->AddOption("name", name.get(), "Name of the server", {.required = true});
  drain->AddOption(
      "--wait", wait.get(),
      "Wait until it is drained, or with --cancel has slots again and all servers have "
      "what theirs had, for so many seconds at most (900): exit code 4 when it is not "
      "so by then",
      {.value_if_bare = "900"});
  drain->AddFlag("--cancel", flag.get(), "It is to have slots again");
  drain->SetRun([=] { return RunNodeDrain(*context, *name, *wait, *flag); });
  Command* forget = node->AddCommand("delete", "Forget a server that is down for good");
  forget->SetFooter(
      "Refused while it is alive, and while Puts wait for it: accept the loss first, or nothing "
      "would say whom they wait for.");
  forget->AddOption("name", name.get(), "Name of the server", {.required = true});
  forget->SetRun([=] { return RunNodeDelete(*context, *name); });

  Command* view = program->AddCommand("view", "Who owns which part of the keys");
  Command* slots = view->AddCommand("show", "The newest view, and each server's share");
  slots->AddFlag("--slots", flag.get(), "Also list the slots of each server");
  slots->SetRun([=] { return RunView(*context, *flag); });
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
}

}  // namespace ems::emsctl
