#include "mp_server/lease/view_grant.h"

namespace ems::server {

ssd::SlotGrant GrantOf(const DhtView& view, NodeId self, uint64_t lineage) {
  ssd::SlotGrant grant;
  grant.view = view.version();
  const NodeInfo* const shown = view.Find(self);
  grant.shown = shown != nullptr && shown->lineage == lineage;
  grant.history = view.history().id();
  const auto since = view.history().all_since();
  grant.since.assign(since.begin(), since.end());
  for (uint16_t i = 0; i < kSlotCount; ++i) {
    const SlotId slot(i);
    grant.owned[i] = self != kNoNode && view.OwnerId(slot) == self;
  }
  return grant;
}

bool ShowsAnother(const DhtView& view, NodeId self, uint64_t boot_id, uint64_t lineage) {
  const NodeInfo* const shown = view.Find(self);
  if (shown == nullptr || shown->boot_id == boot_id || shown->lineage == lineage) return false;
  // Without a history the controller knows no lineages: 0 says nothing. With one it is a server
  // that stores nothing, and no less another one.
  return shown->lineage != 0 || view.history().known();
}

std::map<uint16_t, Origin> OriginsOf(const DhtView& view, const ssd::SlotGrant& grant,
                                     const std::bitset<kSlotCount>& slots) {
  std::map<uint16_t, Origin> origins;
  for (size_t i = slots._Find_first(); i < kSlotCount; i = slots._Find_next(i)) {
    const auto slot = static_cast<uint16_t>(i);
    if (const NodeId node = view.PreviousId(SlotId(slot)); node != kNoNode)
      origins[slot] = {{grant.history, grant.since[i]}, node};
  }
  return origins;
}

CopySlots::Columns CopiesOf(const DhtView& view, NodeId self) {
  CopySlots::Columns columns;
  for (uint16_t i = 0; i < kSlotCount && !view.copies().empty(); ++i) {
    const std::span<const NodeId> holders = view.Copies(SlotId(i));
    for (size_t n = 0; n < holders.size(); ++n) columns[n][i] = holders[n] == self;
  }
  return columns;
}

}  // namespace ems::server
