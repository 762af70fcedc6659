#include "mp_server/ownership.h"

namespace ems::server {

void Ownership::Store(const std::bitset<kSlotCount>& from, Bitmap* to) {
  for (size_t word = 0; word < to->size(); ++word) {
    uint64_t bits = 0;
    for (size_t bit = 0; bit < 64; ++bit) bits |= uint64_t{from[word * 64 + bit]} << bit;
    (*to)[word].store(bits, std::memory_order_release);
  }
}

std::bitset<kSlotCount> Ownership::Install(const DhtView& view) {
  if (view.version() <= version()) return owned_now_;
  const NodeId me = self();
  std::bitset<kSlotCount> owned;
  std::bitset<kSlotCount> held;
  bool taken_over = false;
  const bool holding =
      clock_->Now().time_since_epoch().count() < hold_until_.load(std::memory_order_relaxed);
  for (uint16_t i = 0; i < kSlotCount; ++i) {
    const SlotId slot(i);
    owned[i] = me != kNoNode && view.OwnerId(slot) == me;
    const NodeId before = last_owners_.owner(slot);
    // Its old owner is not in the new view: it died, or it is cut off and does not know yet.
    const bool taken = before != kNoNode && before != me && view.Find(before) == nullptr;
    taken_over |= owned[i] && taken;
    // A hold of the view before goes on: its reason has not gone away with the next view.
    held[i] = owned[i] && (taken || (holding && before == me && Test(held_, slot)));
  }
  if (taken_over) {
    hold_until_.store((clock_->Now() + kTakeoverHold).time_since_epoch().count(),
                      std::memory_order_release);
  }
  Store(held, &held_);
  Store(owned, &owned_);
  last_owners_ = view.slots();
  owned_now_ = owned;
  owned_count_.store(static_cast<uint32_t>(owned.count()), std::memory_order_relaxed);
  version_.store(view.version().packed(), std::memory_order_release);
  return owned;
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
  return Test(owned_, slot) ? Verdict::kYes : Verdict::kWrongOwner;
}

Verdict Ownership::CheckWrite(SlotId slot, ViewVersion client) const {
  const Verdict verdict = CheckRead(slot, client);
  if (verdict != Verdict::kYes) return verdict;
  if (!LeaseValid()) return Verdict::kFenced;
  if (Test(held_, slot) &&
      clock_->Now().time_since_epoch().count() < hold_until_.load(std::memory_order_acquire)) {
    return Verdict::kHold;
  }
  return Verdict::kYes;
}

}  // namespace ems::server
