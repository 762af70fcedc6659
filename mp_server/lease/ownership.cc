#include "mp_server/lease/ownership.h"

#include <algorithm>
#include <utility>

namespace ems::server {

std::bitset<kSlotCount> Ownership::Install(const DhtView& view) {
  if (view.version() <= version()) return owned_now_;
  const NodeId me = self();
  const SlotHistory& history = view.history();
  std::bitset<kSlotCount> owned;
  gained_.resize(kSlotCount);
  for (uint16_t i = 0; i < kSlotCount; ++i) {
    const SlotId slot(i);
    owned[i] = me != kNoNode && view.OwnerId(slot) == me;
    if (history.known()) {
      gained_[i] = history.since(slot);
    } else if (!owned_now_[i]) {
      gained_[i] = view.version().epoch();
    }
  }
  // A slot that goes while it is held stays held until it has gone.
  const std::bitset<kSlotCount> held_before = std::exchange(held_now_, {});
  owned_now_ = owned;
  HoldInactive(held_before);
  owned_.Set(owned);
  HoldInactive({});
  owned_count_.store(static_cast<uint32_t>(owned.count()), std::memory_order_relaxed);
  fingerprint_ = view.Fingerprint();
  version_.store(view.version().packed(), std::memory_order_release);
  return owned;
}

void Ownership::Settle() {
  {
    auto settled = settled_.Lock();
    *settled = {version(), fingerprint_};
  }
  settled_version_.store(version().packed(), std::memory_order_release);
}

ViewIdentity Ownership::installed() const {
  auto settled = settled_.Lock();
  return *settled;
}

void Ownership::SetActive(uint64_t epoch) {
  if (epoch <= active_) return;
  active_ = epoch;
  if (HoldsSlots()) HoldInactive({});
}

void Ownership::HoldInactive(const std::bitset<kSlotCount>& more) {
  held_now_.reset();
  if (rules_.puts_wait_for_activation) {
    // Of the slots that are owned alone: few of many where there are many servers.
    for (size_t i = owned_now_._Find_first(); i < kSlotCount; i = owned_now_._Find_next(i))
      if (std::max(gained_[i], hold_until_) > active_) held_now_.set(i);
  }
  held_.Set(held_now_ | more);
  holds_.store(held_now_.any(), std::memory_order_relaxed);
}

void Ownership::RenewLease(TimePoint until) {
  const int64_t wanted = until.time_since_epoch().count();
  int64_t now = lease_until_.load(std::memory_order_relaxed);
  while (now < wanted && !lease_until_.compare_exchange_weak(now, wanted, std::memory_order_release,
                                                             std::memory_order_relaxed)) {
  }
}

void Ownership::Revoke() { revoked_.store(true, std::memory_order_release); }

bool Ownership::LeaseValid() const {
  return !revoked_.load(std::memory_order_acquire) && clock_->Now() < lease_until();
}

Verdict Ownership::CheckRead(SlotId slot, ViewVersion client) const {
  if (client > version()) return Verdict::kBehind;
  return owned_.Has(slot.value()) ? Verdict::kYes : Verdict::kWrongOwner;
}

Verdict Ownership::CheckWrite(SlotId slot, ViewVersion client) const {
  const Verdict verdict = CheckRead(slot, client);
  if (verdict != Verdict::kYes) return verdict;
  if (!LeaseValid()) return Verdict::kFenced;
  return held_.Has(slot.value()) ? Verdict::kHold : Verdict::kYes;
}

}  // namespace ems::server
