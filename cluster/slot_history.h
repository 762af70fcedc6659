#pragma once
// For each slot the epoch of the view since which nobody but its owner can have written there.
//
// A server that comes back with what it stored asks it: what it stored of a slot is still true if
// the slot has been its own since a view that it had installed by then. An owner is a node and its
// lineage (NodeInfo): a node that comes back with another storage, or has been there without it, is
// another owner. Invariant: since(slot) is at most the epoch of the view that it belongs to, and
// grows whenever the slot gets another owner. Bound:
// kSlotCount numbers, 128 KiB.
#include <cstdint>
#include <span>
#include <vector>

#include "common/check.h"
#include "common/ids.h"
#include "common/status.h"

namespace ems {

// A value. Threading: immutable but for its builders.
class SlotHistory final {
 public:
  // Nothing is known: of views that a controller made which keeps none.
  SlotHistory() = default;
  // Read from somewhere.
  // Errors: kInvalidArgument  not kSlotCount numbers, one above `epoch`, or id 0
  static Result<SlotHistory> Make(uint64_t id, std::vector<uint64_t> since, uint64_t epoch);

  bool known() const { return id_ != 0; }
  // Random, of the controller's store; numbers of different ones say nothing of each other. 0: not
  // known
  uint64_t id() const { return id_; }
  // Only when known().
  uint64_t since(SlotId slot) const {
    EMS_CHECK(known(), "asked of a history that is not known");
    return since_[slot.value() % kSlotCount];
  }

  // By slot; empty when it is not known.
  std::span<const uint64_t> all_since() const { return since_; }

  friend bool operator==(const SlotHistory&, const SlotHistory&) = default;

 private:
  uint64_t id_ = 0;
  std::vector<uint64_t> since_;  // empty, or one a slot
};

}  // namespace ems
