#pragma once
// Tells what became of servers and views from what there was and what there is. What was before the
// first look is nothing new.
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "mp_controller/events/cluster_events.h"

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
  // `events` must outlive it.
  explicit ClusterObserver(ClusterEvents* events) : events_(*events) {}

  const View& view() const { return view_; }  // of the last look
  // What holds now; `view` may be null. Servers come first: a view follows from what they do.
  // Cost: O(nodes), and O(slots) with a new view.
  void Look(const v1::ListNodesReply& nodes, View view);

 private:
  struct Seen {
    int state = 0;  // v1::NodeState
    uint64_t boot_id = 0;
    int drain = 0;  // v1::DrainState
    bool ssd_is_sick = false;
    uint64_t damaged = 0;
    bool present = true;  // in the list of this look
  };
  void LookAt(const v1::NodeStatus& node, const Seen* before);
  void TellState(const v1::NodeStatus& node, const Seen* before);
  void TellDrain(const v1::NodeStatus& node, const Seen* before);
  void TellView(const DhtView& next);

  ClusterEvents& events_;
  std::map<std::string, Seen> nodes_;
  View view_;
  bool looked_ = false;
};

}  // namespace ems::controller
