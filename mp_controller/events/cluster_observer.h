#pragma once
// Tells what became of servers and views from what there was and what there is, and counts drains.
// What was before the first look is nothing new.
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "common/clock.h"
#include "mp_controller/events/cluster_events.h"
#include "mp_controller/events/drain_metrics.h"

namespace ems {
class DhtView;
namespace v1 {
class ListNodesReply;
class NodeStatus;
}  // namespace v1
}  // namespace ems

namespace ems::controller {

// Threading: one thread (the controller's loop).
class ClusterObserver final {
 public:
  using View = std::shared_ptr<const DhtView>;
  // All must outlive it. Without `metrics` nothing is counted.
  explicit ClusterObserver(ClusterEvents* events, const DrainMetrics* metrics = nullptr,
                           const Clock* clock = &Clock::System())
      : events_(*events), metrics_(metrics), clock_(*clock) {}

  const View& view() const { return view_; }  // of the last look
  // What holds now; `view` may be null. Servers come first: a view follows from what they do.
  // Cost: O(nodes), and O(slots) with a new view.
  void Look(const v1::ListNodesReply& nodes, View view);

 private:
  struct Seen {
    int state = 0;  // v1::NodeState
    uint64_t boot_id = 0;
    int drain = 0;            // v1::DrainState
    TimePoint drained_since;  // with DRAIN_DRAINING: when that was first seen
    bool ssd_is_sick = false;
    uint64_t damaged = 0;
    bool present = true;  // in the list of this look
  };
  void LookAt(const v1::NodeStatus& node, const Seen* before);
  void TellState(const v1::NodeStatus& node, const Seen* before);
  void TellDrain(const v1::NodeStatus& node, const Seen* before);
  void CountDrain(const v1::NodeStatus& node, int was, Duration took);
  void ShowDrains(const v1::ListNodesReply& nodes);
  void TellView(const DhtView& next);

  ClusterEvents& events_;
  const DrainMetrics* const metrics_;
  const Clock& clock_;
  std::map<std::string, Seen> nodes_;
  View view_;
  bool looked_ = false;
};

}  // namespace ems::controller
