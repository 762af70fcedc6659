#pragma once
// Pure: (slot table so far, live nodes with weights) → next slot table, by sticky bounded weighted
// rendezvous hashing.
//
// Invariant: each slot has one live owner, or none when no node lives; a node's slots are its share
// by weight rounded to a neighbour, and never above 1.05 × the share while that is possible. Bound:
// 2 × kSlotCount × nodes score computations of about 2 ns each.
#include <cstdint>
#include <span>
#include <vector>

#include "cluster/dht_view.h"
#include "cluster/slot_copies.h"
#include "cluster/slot_table.h"
#include "common/ids.h"

namespace ems::controller {

struct NodeWeight {
  NodeId id;
  uint64_t capacity_bytes = 0;  // above 0
};

// What making a table took, in steps that do not depend on the machine.
struct BuildCost {
  uint64_t scores = 0;      // pairs of slot and node whose hash was computed
  uint64_t logarithms = 0;  // of those, the ones that could win: some 20 ns each
};

// The same input gives the same table, whatever the order of `live`; ids are unique. An owner keeps
// a slot unless it is gone or over its target; only the surplus moves, and a node that was away is
// given nearly all of the slots that it had. A slot that moves goes to the first holder of its
// `copies` that is to have more slots, if there is one. `cost` (null: not asked) is added to.
// Cost: O(moved slots × nodes that gain slots + slots of nodes that lose some × nodes that gain +
// kSlotCount log kSlotCount): at 1,000 nodes 0.5 ms for one change, 50 ms for a first table.
SlotTable BuildSlots(const SlotTable& previous, std::vector<NodeWeight> live,
                     BuildCost* cost = nullptr, const SlotCopies& copies = {});
// The same for these nodes, by their capacity.
SlotTable BuildSlotsOf(const SlotTable& previous, std::span<const NodeInfo> live,
                       const SlotCopies& copies = {});

}  // namespace ems::controller
