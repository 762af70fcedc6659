#include "mp_server/hot/hot_guests.h"

namespace ems::server {

bool HotGuests::Admit(NamespaceRef ns, SlotId slot, std::string_view key) {
  const TimePoint until = clock_.Now() + keep_for_;
  auto guests = guests_.Lock();
  const auto [at, fresh] = guests->try_emplace({ns, std::string(key)}, Guest{slot, until});
  at->second.until = until;
  if (!fresh) return true;
  if (guests->size() > kMost) {
    guests->erase(at);
    return false;
  }
  slots().AddGuest(slot);
  return true;
}

void HotGuests::Expire() {
  const TimePoint now = clock_.Now();
  Guests gone;
  {
    auto guests = guests_.Lock();
    for (auto at = guests->begin(); at != guests->end();) {
      const auto next = std::next(at);
      if (at->second.until <= now) gone.insert(guests->extract(at));
      at = next;
    }
  }
  Remove(gone);
}

void HotGuests::Clear() {
  Guests gone;
  {
    auto guests = guests_.Lock();
    gone.swap(*guests);
  }
  Remove(gone);
}

size_t HotGuests::size() {
  auto guests = guests_.Lock();
  return guests->size();
}

// First nothing more comes into the slots.
void HotGuests::Remove(const Guests& gone) {
  for (const auto& [name, guest] : gone) slots().DropGuest(guest.slot);
  for (const auto& [name, guest] : gone) {
    const TieredNamespace objects = store_.Open(name.first);
    if (!objects || ownership_.CheckRead(guest.slot, ViewVersion()) == Verdict::kYes ||
        slots().Has(guest.slot, objects.replicas()))
      continue;
    (void)objects.Remove(name.second, [] {});
  }
}

}  // namespace ems::server
