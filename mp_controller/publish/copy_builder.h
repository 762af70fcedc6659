#pragma once
// Pure: (owners, live nodes, who held copies so far) → who holds copies of each slot from now on.
//
// Invariant: no holder owns the slot, and none comes twice; a slot has as many holders as are
// wanted, or as there are other nodes. Of the nodes that could be taken for a slot, those count
// that share least of the failure domain with its owner and its other holders, and of these one
// that is below its share by weight. Bound: (kSlotCount × copies) × nodes draws, some 3 ns each.
#include <cstddef>
#include <span>

#include "cluster/dht_view.h"
#include "cluster/slot_copies.h"
#include "cluster/slot_table.h"

namespace ems::controller {

// `copies` of each slot, kMost at most, by nodes of `live`, whose ids are unique; the same input
// gives the same result, whatever the order of `live`. A node keeps its copies unless it is gone,
// owns the slot now, stands worse than another one could, or has more than 1.05 × its share: then
// those go to which it has the weakest claim. Of a holder that owns the slot now the next one takes
// the place.
SlotCopies BuildCopies(const SlotCopies& previous, const SlotTable& owners,
                       std::span<const NodeInfo> live, size_t copies);

}  // namespace ems::controller
