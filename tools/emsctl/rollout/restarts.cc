#include "tools/emsctl/rollout/restarts.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "cluster/while_starting.h"
#include "proto/controller.pb.h"

namespace ems::emsctl {
namespace {

const v1::NodeStatus* Find(const v1::ListNodesReply& nodes, const std::string& name) {
  const auto found = std::ranges::find_if(
      nodes.nodes(), [&](const v1::NodeStatus& one) { return one.node().name() == name; });
  return found == nodes.nodes().end() ? nullptr : &*found;
}

// What it stores outlives its process: its memory with a holder, its SSD tier.
RestartMethod MethodOf(const v1::NodeStatus& node) {
  return node.node().lineage() != 0 ? RestartMethod::kHold : RestartMethod::kDrain;
}

Result<RestartStep> StepOf(const v1::ListNodesReply& nodes, const v1::NodeStatus& node,
                           const CommandWords& command, const RestartOptions& options) {
  const std::string& name = node.node().name();
  RestartStep step{.name = name,
                   .host = HostOf(node.node().data_address()),
                   .method = options.method.value_or(MethodOf(node)),
                   .words = {}};
  if (node.node().state() != v1::NODE_LIVE)
    return Error(StatusCode::kFailedPrecondition,
                 "server {} does not live: start it, or name the servers that are meant", name);
  if (node.drain() != v1::DRAIN_NONE)
    return Error(StatusCode::kFailedPrecondition,
                 "server {} is drained, and restarts without any care", name);
  const auto others = std::ranges::count_if(nodes.nodes(), [&](const v1::NodeStatus& other) {
    return &other != &node && other.node().state() == v1::NODE_LIVE &&
           other.drain() == v1::DRAIN_NONE;
  });
  if (step.method == RestartMethod::kDrain && others == 0)
    return Error(StatusCode::kFailedPrecondition,
                 "no other server could take what server {} has, and its memory does not outlive "
                 "its process: --method=hold restarts it all the same, and empty",
                 name);
  EMS_ASSIGN_OR_RETURN(step.words, command.For(name, step.host));
  return step;
}

}  // namespace

std::string_view MethodText(RestartMethod method) {
  return method == RestartMethod::kHold ? "restart in place" : "drain, restart, cancel";
}

Result<std::vector<RestartStep>> PlanRestarts(const v1::ListNodesReply& nodes,
                                              const CommandWords& command,
                                              const RestartOptions& options) {
  std::vector<const v1::NodeStatus*> wanted;
  for (const std::string& name : options.servers) {
    const v1::NodeStatus* const node = Find(nodes, name);
    if (node == nullptr)
      return Error(StatusCode::kNotFound,
                   "server {}: no such server; `emsctl node list` shows them", name);
    if (std::ranges::count(wanted, node) == 0) wanted.push_back(node);
  }
  if (options.servers.empty()) {
    for (const v1::NodeStatus& node : nodes.nodes())
      if (node.node().state() != v1::NODE_LEFT && node.drain() == v1::DRAIN_NONE)
        wanted.push_back(&node);
    std::ranges::sort(wanted, {}, [](const v1::NodeStatus* one) { return one->node().name(); });
  }
  std::vector<RestartStep> steps;
  for (const v1::NodeStatus* const node : wanted) {
    EMS_ASSIGN_OR_RETURN(RestartStep step, StepOf(nodes, *node, command, options));
    steps.push_back(std::move(step));
  }
  return steps;
}

Status Rollout::Prepare(const RestartStep& step) {
  parts_.say("waiting until the cluster is well and nothing moves");
  EMS_RETURN_IF_ERROR(
      Prefixed(AwaitFree(parts_.controller, UnrestOf, options_.patience), "before it"));
  if (step.method != RestartMethod::kDrain) return OkStatus();
  parts_.say("draining");
  EMS_RETURN_IF_ERROR(WhileStarting(Deadline::After(options_.patience.call), [&](Deadline until) {
    return parts_.controller->DrainNode(step.name, /*cancel=*/false, until);
  }));
  return Prefixed(
      AwaitDrained(parts_.controller, step.name, options_.patience),
      fmt::format("draining it (`emsctl node drain {} --cancel` takes that back)", step.name));
}

// As another process than that of `boot_id`, with the newest view; then with slots, and all others
// with what is theirs.
Status Rollout::AwaitBack(const RestartStep& step, uint64_t boot_id) {
  parts_.say("waiting until it is back");
  const auto is_away = [&](const v1::ListNodesReply& nodes,
                           const DhtView*) -> std::optional<std::string> {
    const v1::NodeStatus* const node = Find(nodes, step.name);
    if (node == nullptr) return "the controller does not know it any more";
    if (node->node().state() != v1::NODE_LIVE) return "it has not come back";
    if (node->node().boot_id() == boot_id) return "it is the same process as before";
    if (node->behind_ms() > 0) return "it has not the newest view";
    return std::nullopt;
  };
  EMS_RETURN_IF_ERROR(Prefixed(AwaitFree(parts_.controller, is_away, options_.patience),
                               step.method == RestartMethod::kDrain
                                   ? "after its command, and it stays drained"
                                   : "after its command, which may have restarted something else"));
  if (step.method == RestartMethod::kDrain) {
    EMS_RETURN_IF_ERROR(WhileStarting(Deadline::After(options_.patience.call), [&](Deadline until) {
      return parts_.controller->DrainNode(step.name, /*cancel=*/true, until);
    }));
  }
  parts_.say("waiting until all have what is theirs");
  const auto unrest = [&](const v1::ListNodesReply& nodes,
                          const DhtView* view) -> std::optional<std::string> {
    const v1::NodeStatus* const node = Find(nodes, step.name);
    if (node == nullptr || node->slots() == 0) return "it has no slots yet";
    return UnrestOf(nodes, view);
  };
  return Prefixed(AwaitFree(parts_.controller, unrest, options_.patience), "after it came back");
}

// A server that gave all away has fetched it again by now, or others have it still.
Status Rollout::CheckWarm(const RestartStep& step, RestartResult* result) const {
  result->objects_after = parts_.objects(step.name);
  const auto before = result->objects_before, after = result->objects_after;
  if (step.method == RestartMethod::kDrain || options_.cold_is_fine || !before || !after)
    return OkStatus();
  if (*after >= *before / 2) return OkStatus();
  return Error(StatusCode::kInternal,
               "it came back cold, with {} of {} objects: its log says why after `cold start:`. "
               "--allow-cold continues all the same, --method=drain keeps what there is",
               *after, *before);
}

Result<RestartResult> Rollout::Restart(const RestartStep& step) {
  const TimePoint begin = Clock::System().Now();
  RestartResult result;
  result.name = step.name;
  result.method = step.method;
  EMS_RETURN_IF_ERROR(Prepare(step));
  EMS_ASSIGN_OR_RETURN(
      const v1::NodeStatus node,
      FindNode(parts_.controller, step.name, Deadline::After(options_.patience.call)));
  result.objects_before = parts_.objects(step.name);
  parts_.say(Quoted(step.words));
  EMS_RETURN_IF_ERROR(Prefixed(parts_.run(step.words, options_.patience.whole), "its command"));
  EMS_RETURN_IF_ERROR(AwaitBack(step, node.node().boot_id()));
  EMS_RETURN_IF_ERROR(CheckWarm(step, &result));
  result.seconds = std::chrono::duration<double>(Clock::System().Now() - begin).count();
  return result;
}

}  // namespace ems::emsctl
