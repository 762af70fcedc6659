#include "tools/emsctl/rollout/await_servers.h"

#include <fmt/format.h>

#include <algorithm>

#include "cluster/cluster_health.h"
#include "cluster/view_cache.h"
#include "common/thread_pool.h"
#include "proto/controller.pb.h"

namespace ems::emsctl {
namespace {

constexpr Duration kLookEvery = std::chrono::milliseconds(200);

}  // namespace

Result<v1::NodeStatus> FindNode(ControllerClient* controller, const std::string& name,
                                Deadline deadline) {
  v1::ListNodesReply nodes;
  EMS_RETURN_IF_ERROR(controller->ListNodes(&nodes, deadline));
  for (const v1::NodeStatus& node : nodes.nodes())
    if (node.node().name() == name) return node;
  return Error(StatusCode::kNotFound, "no such server; `emsctl node list` shows them");
}

Status AwaitDrained(ControllerClient* controller, const std::string& name,
                    const Patience& patience) {
  const Deadline until = Deadline::After(patience.whole);
  StopFlag pause;
  while (true) {
    const Result<v1::NodeStatus> node = FindNode(controller, name, Deadline::After(patience.call));
    if (node.ok() && node->drain() == v1::DRAIN_DRAINED) return OkStatus();
    if (node.ok() && (node->drain() == v1::DRAIN_NONE || node->stopping()))
      return Error(StatusCode::kFailedPrecondition, "its drain has been cancelled");
    if (node.status().code() == StatusCode::kNotFound) return node.status();
    if (until.Passed()) {
      EMS_RETURN_IF_ERROR(node.status());
      return Error(StatusCode::kDeadlineExceeded,
                   "still draining, it owns {} slots, and {} servers may fetch what it keeps: ask "
                   "again",
                   node->slots(), node->pulled_by());
    }
    pause.WaitFor(std::min(kLookEvery, until.Remaining()));
  }
}

Status AwaitSettled(ControllerClient* controller, const std::string& name,
                    const Patience& patience) {
  const Deadline until = Deadline::After(patience.whole);
  StopFlag pause;
  while (true) {
    v1::ListNodesReply nodes;
    const Status asked = controller->ListNodes(&nodes, Deadline::After(patience.call));
    const auto waits = [&](const v1::NodeStatus& node) {
      const bool moves = node.behind_ms() > 0 || node.waited_for() || node.pulls_from() > 0;
      const bool comes = node.node().name() == name && node.slots() == 0;
      return comes || (node.node().state() == v1::NODE_LIVE && moves);
    };
    const auto waiting = std::ranges::count_if(nodes.nodes(), waits);
    if (asked.ok() && waiting == 0) return OkStatus();
    if (until.Passed()) {
      EMS_RETURN_IF_ERROR(asked);
      return Error(StatusCode::kDeadlineExceeded,
                   "{} servers have not what their slots had, or no slots yet: ask again", waiting);
    }
    pause.WaitFor(std::min(kLookEvery, until.Remaining()));
  }
}

Status AwaitFree(ControllerClient* controller, const Blocker& blocker, const Patience& patience) {
  const Deadline until = Deadline::After(patience.whole);
  StopFlag pause;
  while (true) {
    v1::ListNodesReply nodes;
    ViewCache cache;
    Status asked = controller->ListNodes(&nodes, Deadline::After(patience.call));
    if (asked.ok()) asked = controller->Refresh(&cache, Deadline::After(patience.call));
    const auto inquiry = [&]() -> std::optional<std::string> {
      return asked.ok() ? blocker(nodes, cache.view().get()) : std::string(Message(asked));
    };
    const std::optional<std::string> blocked = inquiry();
    if (!blocked) return OkStatus();
    if (until.Passed()) return Error(StatusCode::kDeadlineExceeded, "{}", *blocked);
    pause.WaitFor(std::min(kLookEvery, until.Remaining()));
  }
}

// What does not pass by itself comes first.
std::optional<std::string> UnrestOf(const v1::ListNodesReply& nodes, const DhtView* view) {
  for (const v1::NodeStatus& node : nodes.nodes()) {
    if (IsSick(node, nodes, view))
      return fmt::format("server {} is not well; `emsctl status` says why", node.node().name());
  }
  for (const v1::NodeStatus& node : nodes.nodes()) {
    const std::string& name = node.node().name();
    if (node.node().state() == v1::NODE_LEFT && node.slots() > 0)
      return fmt::format("server {} is stopped, and its slots wait for it", name);
    if (node.node().state() != v1::NODE_LIVE) continue;
    if (node.drain() == v1::DRAIN_DRAINING)
      return fmt::format("server {} is being drained: {} slots to go", name, node.slots());
    if (node.slots() == 0 && node.drain() == v1::DRAIN_NONE)
      return fmt::format("server {} has no slots yet", name);
    if (node.behind_ms() > 0) return fmt::format("server {} has not the newest view", name);
    if (node.waited_for())
      return fmt::format("Puts wait for an earlier process of server {}", name);
    if (node.pulls_from() > 0)
      return fmt::format("server {} still fetches what {} others keep of its slots", name,
                         node.pulls_from());
  }
  const Health health = HealthOf(nodes, view);
  if (health == Health::kOk) return std::nullopt;
  return fmt::format("the cluster's health is {}; `emsctl status` says why", HealthWord(health));
}

}  // namespace ems::emsctl
