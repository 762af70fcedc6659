#include "cluster/cluster_health.h"

#include <algorithm>

#include "cluster/dht_view.h"
#include "proto/controller.pb.h"

namespace ems {
namespace {

// How many heartbeats a server may take to report a new view.
constexpr uint64_t kBehindHeartbeats = 2;

// How much longer than a lease a wait for a server is in order: until its peers cannot prolong its
// lease, and until all have heard of it.
constexpr uint64_t kWaitBeyondLeaseMs = 2000;

}  // namespace

std::string_view HealthWord(Health health) {
  switch (health) {
    case Health::kOk:
      return "OK";
    case Health::kDegraded:
      return "DEGRADED";
    case Health::kFrozen:
      return "FROZEN";
    case Health::kNoServers:
      return "NO SERVERS";
  }
  return "?";
}

std::string_view DrainWord(const v1::NodeStatus& node) {
  switch (node.drain()) {
    case v1::DRAIN_DRAINING:
      return "draining";
    case v1::DRAIN_DRAINED:
      return "drained";
    default:
      return "none";
  }
}

bool HasSickSsd(const v1::NodeStatus& node) {
  const v1::SsdState ssd = node.usage().ssd_state();
  return node.node().state() == v1::NODE_LIVE &&
         (ssd == v1::SSD_DEGRADED || ssd == v1::SSD_OFFLINE);
}

bool IsAhead(const v1::NodeStatus& node) {
  return node.ahead() && node.node().state() != v1::NODE_LEFT;
}

bool IsBehind(const v1::NodeStatus& node, const v1::ListNodesReply& nodes, const DhtView* view) {
  const uint64_t heartbeat_ms = nodes.heartbeat_ms();  // 0: an older controller
  return view != nullptr && node.slots() > 0 && node.node().state() == v1::NODE_LIVE &&
         !node.ahead() && ViewVersion(node.term(), node.epoch()) < view->version() &&
         (heartbeat_ms == 0 || node.behind_ms() > kBehindHeartbeats * heartbeat_ms);
}

bool IsWaitedForLong(const v1::NodeStatus& node, const v1::ListNodesReply& nodes) {
  const uint64_t lease_ms = nodes.lease_ms();  // 0: an older controller
  return node.waited_for() && lease_ms > 0 && node.waiting_ms() > lease_ms + kWaitBeyondLeaseMs;
}

bool IsSick(const v1::NodeStatus& node, const v1::ListNodesReply& nodes, const DhtView* view) {
  return node.node().state() == v1::NODE_DOWN || HasSickSsd(node) || IsAhead(node) ||
         IsBehind(node, nodes, view) || IsWaitedForLong(node, nodes);
}

Health HealthOf(const v1::ListNodesReply& nodes, const DhtView* view) {
  if (view != nullptr && view->frozen()) return Health::kFrozen;
  const auto any = [&](const auto& holds) {
    return std::any_of(nodes.nodes().begin(), nodes.nodes().end(), holds);
  };
  if (view == nullptr || view->nodes().empty() ||
      !any([](const v1::NodeStatus& n) { return n.node().state() == v1::NODE_LIVE; })) {
    return Health::kNoServers;
  }
  if (nodes.store_is_old()) return Health::kDegraded;
  return any([&](const v1::NodeStatus& n) { return IsSick(n, nodes, view); }) ? Health::kDegraded
                                                                              : Health::kOk;
}

}  // namespace ems
