#pragma once
// Which nodes hold copies of the objects of a slot besides its owner, in an order: what namespaces
// with `replicas` above 1 are kept in. A namespace uses the first `replicas` - 1 of them.
//
// Chosen by the controller alone (mp_controller/publish/copy_builder.h). Invariant: in a view the
// holders of a slot are nodes of it, none is the slot's owner, and none comes twice. Bound: kMost a
// slot, 128 KiB.
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/ids.h"
#include "common/status.h"

namespace ems {

// A value. Threading: immutable but for its builders.
class SlotCopies final {
 public:
  static constexpr size_t kMost = 2;
  using Holders = std::array<NodeId, kMost>;  // kNoNode behind the last one

  // Nobody holds a copy of anything: no namespace wants any.
  bool empty() const { return holders_.empty(); }
  // In their order; empty: there is none. Lives as long as this.
  std::span<const NodeId> Of(SlotId slot) const {
    if (holders_.empty()) return {};
    const Holders& all = holders_[slot.value() % kSlotCount];
    size_t count = 0;
    while (count < kMost && all[count] != kNoNode) ++count;
    return std::span(all).first(count);
  }
  void Set(SlotId slot, std::span<const NodeId> holders);
  // Of all that it says; 0 when it is empty.
  uint64_t Checksum(ViewVersion version) const;

  // The `column`th holders of the slots where they are not those of `base`, as packed_slots.h has
  // them, with age 0; owner 0: none any more.
  std::string PackColumn(size_t column, const SlotCopies& base) const;
  // Writes that over what is here. Errors: those of UnpackSlots
  Status OverlayColumn(size_t column, std::string_view packed);

  friend bool operator==(const SlotCopies&, const SlotCopies&) = default;

 private:
  NodeId At(size_t slot, size_t column) const {
    return holders_.empty() ? kNoNode : holders_[slot][column];
  }

  std::vector<Holders> holders_;  // empty, or one a slot
};

}  // namespace ems
