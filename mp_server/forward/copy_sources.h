#pragma once
// The slots that have come to this server, or to this process, of which others hold copies since
// before: whom to ask for what is not here, for a while.
//
// In time those holders bring all of it themselves (replicator.h). Bound: 400 KiB, and what views
// say of copies.
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "cluster/dht_view.h"
#include "common/clock.h"
#include "common/guarded.h"
#include "common/ids.h"

namespace ems::server {

// Threading: thread-safe; SetView from one thread.
class CopySources final {
 public:
  CopySources(Duration seek_for, const Clock* clock) : seek_for_(seek_for), clock_(*clock) {}

  // Before requests are judged by it. Until when some slot is sought.
  TimePoint SetView(const DhtView& view, NodeId self);
  // Whether another server may have copies of what is not here of the slot. Cost: a load.
  bool MaySeek(SlotId slot) const {
    return until_ns_[slot.value() % kSlotCount].load(std::memory_order_acquire) != 0;
  }
  bool MaySeekAny() const { return any_.load(std::memory_order_acquire); }
  // Who, of a namespace with so many replicas; none: nobody, or the slot's time is over.
  std::vector<NodeId> Of(SlotId slot, uint32_t replicas);

 private:
  struct Owner {
    NodeId node;
    uint64_t boot_id = 0;
    friend bool operator==(const Owner&, const Owner&) = default;
  };
  struct State {
    SlotCopies copies;
    NodeId self;
  };
  const Duration seek_for_;
  const Clock& clock_;
  std::vector<Owner> owners_;  // of the view before, empty at first; SetView's, as the next
  TimePoint last_until_{};
  std::array<std::atomic<int64_t>, kSlotCount> until_ns_{};  // 0: it is not sought
  std::atomic<bool> any_{false};
  Guarded<State> state_;
};

}  // namespace ems::server
