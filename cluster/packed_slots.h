#pragma once
// Slots and their owners as they travel in views and deltas: about two bytes each where an owner
// has many, about five where each has another owner.
//
// Groups, in the order of (owner, age), of the slots that share both; each number is a varint of 7
// bits a byte, the lowest first:
//   owner  node id; 0: nobody
//   age    how many epochs before the view's own it was that gave these slots to their owner
//   count  of the slots that follow, 1 at least
//   gaps   the first slot, then for each further one how much larger it is, 1 at least
// Bound: kSlotCount slots.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/ids.h"
#include "common/status.h"

namespace ems {

struct HeldSlot {
  SlotId slot;
  NodeId owner;
  uint64_t age = 0;  // epochs; 0 where no history is known
  friend bool operator==(const HeldSlot&, const HeldSlot&) = default;
};

// In any order, each slot once. Cost: O(n log n).
std::string PackSlots(std::vector<HeldSlot> slots);
// In the order of (owner, age, slot). A slot may come twice in bytes of others.
// Errors: kInvalidArgument  not such bytes, or more than kSlotCount slots. Cost: O(bytes).
Result<std::vector<HeldSlot>> UnpackSlots(std::string_view packed);

}  // namespace ems
