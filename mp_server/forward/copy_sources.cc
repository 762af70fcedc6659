#include "mp_server/forward/copy_sources.h"

#include <algorithm>
#include <utility>

namespace ems::server {

TimePoint CopySources::SetView(const DhtView& view, NodeId self) {
  {
    auto state = state_.Lock();
    state->copies = view.copies();
    state->self = self;
  }
  const TimePoint until = clock_.Now() + seek_for_;
  std::vector<Owner> owners(kSlotCount);
  const NodeInfo* known = nullptr;
  bool any = false;
  for (uint16_t i = 0; i < kSlotCount; ++i) {
    const SlotId slot(i);
    std::atomic<int64_t>& sought = until_ns_[i];
    if (view.OwnerId(slot) != self || view.Copies(slot).empty())
      sought.store(0, std::memory_order_release);
    const NodeId owner = view.OwnerId(slot);
    if (known == nullptr || known->id != owner) known = view.Find(owner);
    if (known != nullptr) owners[i] = {owner, known->boot_id};
    const bool came = owner == self && (owners_.empty() || owners_[i] != owners[i]);
    if (came && !view.Copies(slot).empty())
      sought.store(until.time_since_epoch().count(), std::memory_order_release);
    any = any || sought.load(std::memory_order_relaxed) != 0;
    if (came) last_until_ = until;
  }
  owners_ = std::move(owners);
  any_.store(any, std::memory_order_release);
  return any ? last_until_ : TimePoint{};
}

std::vector<NodeId> CopySources::Of(SlotId slot, uint32_t replicas) {
  std::atomic<int64_t>& sought = until_ns_[slot.value() % kSlotCount];
  int64_t until = sought.load(std::memory_order_acquire);
  if (until == 0) return {};
  if (clock_.Now().time_since_epoch().count() >= until) {
    sought.compare_exchange_strong(until, 0, std::memory_order_release);
    return {};
  }
  std::vector<NodeId> nodes;
  auto state = state_.Lock();
  const auto holders = state->copies.Of(slot);
  for (size_t i = 0; i + 1 < replicas && i < holders.size(); ++i)
    if (holders[i] != state->self) nodes.push_back(holders[i]);
  return nodes;
}

}  // namespace ems::server
