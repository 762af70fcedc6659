#pragma once
// Pure: (slot table so far, live nodes with weights) → next slot table, by sticky bounded weighted
// rendezvous hashing.
//
// Invariant: each slot has one live owner, or none when no node lives; a node's slots are its share
// by weight rounded to a neighbour, and never above 1.05 × the share while that is possible. Bound:
// 4096 slots × nodes score computations.
#include <cstdint>
#include <vector>

#include "common/ids.h"
#include "mp_controller/view/slot_table.h"

namespace ems::controller {

struct NodeWeight {
  NodeId id;
  uint64_t capacity_bytes = 0;  // above 0
};

// The same input gives the same table, whatever the order of `live`; ids are unique. An owner keeps
// a slot unless it is gone or over its target; only the surplus moves, and a node that was away is
// given nearly all of the slots that it had. Cost: O(moved slots × nodes + 4096 × nodes that gain
// slots + 4096 log 4096).
SlotTable BuildSlots(const SlotTable& previous, std::vector<NodeWeight> live);

}  // namespace ems::controller
