#include "mp_controller/publish/next_history.h"

#include <unordered_map>
#include <utility>
#include <vector>

namespace ems::controller {

SlotHistory NextHistory(const DhtView* before, std::span<const NodeInfo> nodes,
                        const SlotTable& slots, uint64_t epoch, uint64_t new_id) {
  std::vector<uint64_t> since(kSlotCount, epoch);
  if (before == nullptr || !before->history().known())
    return *SlotHistory::Make(new_id, std::move(since), epoch);
  // Nodes that are what they were: the same process, or another one with the storage of the one
  // before. A process that had no lineage has stored nothing that a later one could take for its
  // own, so coming by one changes nothing; but it may itself come back, with what it had in memory.
  std::unordered_map<NodeId, bool> same;
  for (const NodeInfo& node : nodes) {
    const NodeInfo* old = before->Find(node.id);
    if (old == nullptr) continue;
    const bool same_storage = old->lineage == node.lineage;
    same[node.id] = old->boot_id == node.boot_id ? same_storage || old->lineage == 0
                                                 : same_storage && node.lineage != 0;
  }
  for (uint16_t i = 0; i < kSlotCount; ++i) {
    const SlotId slot(i);
    const NodeId owner = slots.owner(slot);
    if (owner != kNoNode && owner == before->OwnerId(slot) && same[owner])
      since[i] = before->history().since(slot);
  }
  return *SlotHistory::Make(before->history().id(), std::move(since), epoch);
}

std::vector<NodeId> PreviousOwners(const DhtView* before, const SlotTable& slots,
                                   const SlotHistory& history) {
  if (before == nullptr || before->history().id() != history.id()) return {};
  std::vector<NodeId> previous(kSlotCount, kNoNode);
  for (uint16_t i = 0; i < kSlotCount; ++i) {
    const SlotId slot(i);
    if (history.since(slot) == before->history().since(slot)) {
      previous[i] = before->PreviousId(slot);
    } else if (before->OwnerId(slot) != slots.owner(slot)) {
      previous[i] = before->OwnerId(slot);  // its next process has nothing of its own
    }
  }
  return previous;
}

}  // namespace ems::controller
