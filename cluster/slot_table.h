#pragma once
// The unit of ownership: 16384 slots, and which node owns each. Which slot a key falls into never
// changes.
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "common/check.h"
#include "common/hash.h"
#include "common/ids.h"

namespace ems {

inline constexpr int kSlotShift = 50;
static_assert(kSlotCount == uint64_t{1} << (64 - kSlotShift));

// slot = hash64(namespace id, route key) >> 50. The generation is left out, so that purging moves
// nothing.
inline SlotId SlotOf(NamespaceId ns, std::string_view route_key) {
  return SlotId(static_cast<uint16_t>(Hash64(AsBytes(route_key), ns.value()) >> kSlotShift));
}

// Owner of each slot; kNoNode where there is none. A value of 64 KiB on the heap: a copy costs
// some microseconds. One that was moved from can only be assigned to.
class SlotTable final {
 public:
  NodeId owner(SlotId slot) const { return owners_[slot.value() % kSlotCount]; }
  void set_owner(SlotId slot, NodeId node) {
    EMS_CHECK(slot.value() < kSlotCount, "slot {} of {}", slot.value(), kSlotCount);
    owners_[slot.value()] = node;
  }
  // By slot.
  std::span<const NodeId> owners() const { return owners_; }
  // How many slots `node` owns. Cost: O(kSlotCount), some microseconds.
  uint32_t CountOf(NodeId node) const;
  // How many slots have another owner, or none, in `later`. Cost: as CountOf.
  uint32_t CountMoved(const SlotTable& later) const;
  friend bool operator==(const SlotTable&, const SlotTable&) = default;

 private:
  std::vector<NodeId> owners_ = std::vector<NodeId>(kSlotCount);
};

}  // namespace ems
