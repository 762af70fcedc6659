#include "mp_server/forward/copy_plan.h"

#include <algorithm>
#include <span>

namespace ems::server {

CopyPlan::Holders CopyPlan::HoldersOf(const DhtView& view, SlotId slot) {
  Holders holders;
  const auto holder = [&](NodeId id) {
    const NodeInfo* const node = view.Find(id);
    return node == nullptr ? Holder() : Holder{id, node->boot_id};
  };
  holders[0] = holder(view.OwnerId(slot));
  const std::span<const NodeId> copies = view.Copies(slot);
  for (size_t i = 0; i < copies.size(); ++i) holders[1 + i] = holder(copies[i]);
  return holders;
}

CopyPlan::Targets CopyPlan::Due(const DhtView& view, NodeId self,
                                const std::set<NodeId>& missed) const {
  Targets targets;
  for (uint16_t i = 0; i < kSlotCount && !view.copies().empty(); ++i) {
    const Holders now = HoldersOf(view, SlotId(i));
    Holders before{now[0]};
    if (!settled_.empty()) before = settled_[i];
    for (size_t copies = 1; copies <= SlotCopies::kMost; ++copies) {
      const auto has = [&](const Holders& all, const Holder& one) {
        const auto end = all.begin() + 1 + static_cast<ptrdiff_t>(copies);
        return one.node != kNoNode && std::find(all.begin(), end, one) != end;
      };
      const auto mine = std::ranges::find(now, self, &Holder::node);
      if (mine == now.end() || !has(now, *mine)) continue;
      const bool was_holder = has(before, *mine);
      const bool owns = mine == now.begin();
      const auto lead =
          std::ranges::find_if(before, [&](const Holder& one) { return has(now, one); });
      const bool leads = was_holder && lead != before.end() && *lead == *mine;
      for (size_t n = 0; n <= copies; ++n) {
        const Holder& other = now[n];
        if (other.node == kNoNode || other.node == self) continue;
        const bool is_new = !has(before, other);
        const bool is_new_owner = n == 0 && before[0] != other;
        if ((leads && is_new) || (was_holder && is_new_owner) ||
            (owns && missed.contains(other.node)))
          targets[other.node][copies - 1].set(i);
      }
    }
  }
  return targets;
}

void CopyPlan::Settle(const DhtView& view) {
  settled_.clear();
  if (view.copies().empty()) return;
  settled_.reserve(kSlotCount);
  for (uint16_t i = 0; i < kSlotCount; ++i) settled_.push_back(HoldersOf(view, SlotId(i)));
}

}  // namespace ems::server
