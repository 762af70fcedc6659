#pragma once
// The unit of ownership: 4096 slots, and which node owns each. Which slot a key falls into never
// changes.
#include <array>
#include <cstdint>
#include <string_view>

#include "common/hash.h"
#include "common/ids.h"

namespace ems {

// slot = hash64(namespace id, route key) >> 52. The generation is left out, so that purging moves
// nothing.
inline SlotId SlotOf(NamespaceId ns, std::string_view route_key) {
  return SlotId(static_cast<uint16_t>(Hash64(AsBytes(route_key), ns.value()) >> 52));
}

// Owner of each slot; kNoNode where there is none. A value: copy freely (16 KiB).
class SlotTable final {
 public:
  NodeId owner(SlotId slot) const { return owners_[slot.value() % kSlotCount]; }
  void set_owner(SlotId slot, NodeId node) { owners_[slot.value() % kSlotCount] = node; }
  // How many slots `node` owns. Cost: O(4096).
  uint32_t CountOf(NodeId node) const;
  friend bool operator==(const SlotTable&, const SlotTable&) = default;

 private:
  std::array<NodeId, kSlotCount> owners_{};
};

}  // namespace ems
