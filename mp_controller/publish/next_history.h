#pragma once
// Pure: (the view so far, the next one's nodes and slots) → since when the next view's slots have
// their owners (cluster/slot_history.h).
#include <cstdint>
#include <span>
#include <vector>

#include "cluster/dht_view.h"
#include "cluster/slot_history.h"
#include "cluster/slot_table.h"

namespace ems::controller {

// The history of the view of `epoch`, with these nodes (sorted by id) and slots, which follows
// `before`; after null, or a view without one, it starts again as `new_id` (not 0).
SlotHistory NextHistory(const DhtView* before, std::span<const NodeInfo> nodes,
                        const SlotTable& slots, uint64_t epoch, uint64_t new_id);

// By slot, the node that had it before its owner in that view (DhtView::PreviousId).
std::vector<NodeId> PreviousOwners(const DhtView* before, const SlotTable& slots,
                                   const SlotHistory& history);

}  // namespace ems::controller
