#include "mp_controller/view/slot_history.h"

#include <algorithm>
#include <map>
#include <utility>

#include "mp_controller/view/dht_view.h"

namespace ems {

Result<SlotHistory> SlotHistory::Make(uint64_t id, std::vector<uint64_t> since, uint64_t epoch) {
  if (id == 0 || since.size() != kSlotCount ||
      std::any_of(since.begin(), since.end(), [&](uint64_t one) { return one > epoch; })) {
    return Error(StatusCode::kInvalidArgument,
                 "a history {:x} of {} slots at epoch {}: {} are wanted, none of them later", id,
                 since.size(), epoch, kSlotCount);
  }
  SlotHistory history;
  history.id_ = id;
  history.since_ = std::move(since);
  return history;
}

SlotHistory SlotHistory::After(const DhtView* before, std::span<const NodeInfo> nodes,
                               const SlotTable& slots, uint64_t epoch, uint64_t new_id) {
  SlotHistory history;
  history.id_ = new_id;
  history.since_.assign(kSlotCount, epoch);
  if (before == nullptr || !before->history().known()) return history;
  history.id_ = before->history().id();
  // Nodes that are what they were. One that had no lineage has stored nothing that a later one of
  // its lives could take for its own (a server asks only what it stored while its lineage was
  // shown), so coming by one changes nothing.
  std::map<NodeId, bool> same;
  for (const NodeInfo& node : nodes) {
    const NodeInfo* old = before->Find(node.id);
    same[node.id] = old != nullptr && (old->lineage == node.lineage || old->lineage == 0);
  }
  for (uint16_t i = 0; i < kSlotCount; ++i) {
    const SlotId slot(i);
    const NodeId owner = slots.owner(slot);
    if (owner != kNoNode && owner == before->OwnerId(slot) && same[owner])
      history.since_[i] = before->history().since(slot);
  }
  return history;
}

}  // namespace ems
