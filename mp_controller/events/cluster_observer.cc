#include "mp_controller/events/cluster_observer.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "cluster/cluster_health.h"
#include "cluster/dht_view.h"
#include "proto/controller.pb.h"

namespace ems::controller {
namespace {

// That a view's event names.
constexpr size_t kNamesMost = 8;

// "; joined: a, b, and 3 more", or nothing.
std::string Names(std::string_view what, const std::vector<std::string>& names) {
  if (names.empty()) return {};
  const size_t said = std::min(names.size(), kNamesMost);
  std::string text = fmt::format("; {}: {}", what, fmt::join(std::span(names).first(said), ", "));
  if (said < names.size()) text += fmt::format(", and {} more", names.size() - said);
  return text;
}

// Names of servers of `view` that are not in `other`, which may be null.
std::vector<std::string> Missing(const DhtView& view, const DhtView* other) {
  std::vector<std::string> names;
  for (const NodeInfo& node : view.nodes())
    if (other == nullptr || other->Find(node.id) == nullptr) names.push_back(node.name);
  return names;
}

}  // namespace

void ClusterObserver::Look(const v1::ListNodesReply& nodes, View view) {
  for (auto& [name, seen] : nodes_) seen.present = false;
  for (const v1::NodeStatus& node : nodes.nodes()) {
    const auto at = nodes_.find(node.node().name());
    if (looked_) LookAt(node, at == nodes_.end() ? nullptr : &at->second);
    const v1::NodeUsage& usage = node.usage();
    // A process that is not heard of says nothing of its disk.
    const bool silent = node.node().state() != v1::NODE_LIVE && at != nodes_.end();
    const bool goes_on = at != nodes_.end() && at->second.drain == v1::DRAIN_DRAINING;
    const TimePoint since = goes_on ? at->second.drained_since : clock_.Now();
    nodes_[node.node().name()] = {.state = node.node().state(),
                                  .boot_id = node.node().boot_id(),
                                  .drain = node.drain(),
                                  .drained_since = since,
                                  .ssd_is_sick = silent ? at->second.ssd_is_sick : HasSickSsd(node),
                                  .damaged = usage.damaged_objects()};
  }
  for (auto at = nodes_.begin(); at != nodes_.end();) {
    if (at->second.present) {
      ++at;
      continue;
    }
    events_.Add({kNodeRemoved, at->first, {}, fmt::format("server {} is forgotten", at->first)});
    if (at->second.drain == v1::DRAIN_DRAINING) CountDrain({}, at->second.drain, {});
    at = nodes_.erase(at);
  }
  ShowDrains(nodes);
  if (view != view_) {
    if (looked_ && view != nullptr) TellView(*view);
    view_ = std::move(view);
  }
  looked_ = true;
}

void ClusterObserver::TellState(const v1::NodeStatus& node, const Seen* before) {
  const std::string& name = node.node().name();
  const v1::NodeState state = node.node().state();
  const bool was_live = before != nullptr && before->state == v1::NODE_LIVE;
  const bool known = before != nullptr && before->boot_id != 0;
  const bool restarted = known && before->boot_id != node.node().boot_id();
  if (state == v1::NODE_LIVE && was_live && restarted) {
    events_.Add({kNodeRestarted, name, {}, fmt::format("server {} was restarted", name)});
  } else if (state == v1::NODE_LIVE && !was_live) {
    events_.Add({kNodeJoined,
                 name,
                 {},
                 fmt::format("server {} has {}, at {}", name, known ? "come back" : "joined",
                             node.node().data_address())});
  } else if (state == v1::NODE_LEFT && (before == nullptr || before->state != v1::NODE_LEFT)) {
    events_.Add({kNodeLeft, name, {}, fmt::format("server {} has left in order", name)});
  } else if (state == v1::NODE_DOWN && was_live) {
    events_.Add({kNodeLost,
                 name,
                 {},
                 fmt::format("the lease of server {} has ended: it was last heard of {:.1f} s ago",
                             name, static_cast<double>(node.heartbeat_age_ms()) / 1e3)});
  }
}

void ClusterObserver::TellDrain(const v1::NodeStatus& node, const Seen* before) {
  const std::string& name = node.node().name();
  const int was = before == nullptr ? v1::DRAIN_NONE : before->drain;
  if (node.drain() == was) return;
  const Duration took =
      was == v1::DRAIN_DRAINING ? clock_.Now() - before->drained_since : Duration::zero();
  CountDrain(node, was, took);
  if (node.drain() == v1::DRAIN_DRAINING) {
    events_.Add({kNodeDraining,
                 name,
                 {},
                 fmt::format("server {} {}: its slots go to others", name,
                             node.stopping() ? "stops" : "is drained by an operator")});
  } else if (node.drain() == v1::DRAIN_DRAINED) {
    const std::string late =
        node.pulled_by() == 0
            ? ""
            : fmt::format("; its time is over, and {} servers still fetched from it",
                          node.pulled_by());
    events_.Add({kNodeDrained,
                 name,
                 {},
                 fmt::format("server {} is drained after {:.0f} s and can be stopped{}", name,
                             std::chrono::duration<double>(took).count(), late)});
  } else if (node.node().state() == v1::NODE_LIVE) {
    events_.Add({kNodeDrainCancelled,
                 name,
                 {},
                 fmt::format("server {} is not drained any more: it gets slots again", name)});
  }
}

// One that had nothing to give is drained when it is first seen: that is a whole drain.
void ClusterObserver::CountDrain(const v1::NodeStatus& node, int was, Duration took) {
  if (metrics_ == nullptr || !looked_) return;
  if (was == v1::DRAIN_NONE) metrics_->begun.Add();
  if (node.drain() == v1::DRAIN_DRAINED) {
    (node.pulled_by() == 0 ? metrics_->done : metrics_->timed_out).Add();
    metrics_->seconds.Observe(std::chrono::duration<double>(took).count());
  } else if (was == v1::DRAIN_DRAINING) {
    metrics_->given_up.Add();
  }
}

void ClusterObserver::ShowDrains(const v1::ListNodesReply& nodes) {
  if (metrics_ == nullptr) return;
  int draining = 0;
  uint64_t slots = 0;
  for (const v1::NodeStatus& node : nodes.nodes()) {
    if (node.drain() != v1::DRAIN_DRAINING) continue;
    ++draining;
    slots += node.slots();
  }
  metrics_->nodes.Set(draining);
  metrics_->slots.Set(static_cast<double>(slots));
}

void ClusterObserver::LookAt(const v1::NodeStatus& node, const Seen* before) {
  TellState(node, before);
  TellDrain(node, before);
  if (node.node().state() != v1::NODE_LIVE) return;
  const std::string& name = node.node().name();
  const bool was_sick = before != nullptr && before->ssd_is_sick;
  if (HasSickSsd(node) != was_sick) {
    events_.Add({was_sick ? kSsdRecovered : kSsdDegraded,
                 name,
                 {},
                 fmt::format("the SSD tier of server {} {}", name,
                             was_sick ? "works again" : "takes no writes: it serves from DRAM")});
  }
  const bool same = before != nullptr && before->boot_id == node.node().boot_id();
  const uint64_t damaged = node.usage().damaged_objects(), earlier = same ? before->damaged : 0;
  if (damaged > earlier) {
    events_.Add({kObjectsDamaged,
                 name,
                 {},
                 fmt::format("server {} has found and dropped {} damaged objects, {} since it "
                             "started: test its memory and disk",
                             name, damaged - earlier, damaged)});
  }
}

void ClusterObserver::TellView(const DhtView& next) {
  const uint32_t moved = view_ == nullptr ? 0 : view_->slots().CountMoved(next.slots());
  std::string text = fmt::format("view {}.{}: {} servers, {} slots moved", next.version().term(),
                                 next.version().epoch(), next.nodes().size(), moved);
  text += Names("new", Missing(next, view_.get()));
  if (view_ != nullptr) text += Names("gone", Missing(*view_, &next));
  events_.Add({kViewPublished, {}, {}, std::move(text)});
  const bool was_frozen = view_ != nullptr && view_->frozen();
  if (next.frozen() == was_frozen) return;
  events_.Add({next.frozen() ? kViewFrozen : kViewThawed,
               {},
               {},
               next.frozen() ? "more than half of the servers are gone: the view is frozen until "
                               "they are back, or an operator accepts the loss"
                             : "the view is no longer frozen"});
}

}  // namespace ems::controller
