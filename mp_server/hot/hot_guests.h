#pragma once
// The copies of other servers' hot objects that this server holds, and until when each stays.
//
// A copy is an object in the index of its namespace like any other; this says in which slots there
// may be some (CopySlots), and removes each when its time is over, unless the slot has become this
// server's or holds its copies anyway. Whoever sent it sends it again before that while it is hot,
// so that one of which nobody speaks any more goes by itself. All go before a view is installed: a
// slot that comes with it has nothing that its owner before has removed. Bound: kMost copies.
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "common/clock.h"
#include "common/guarded.h"
#include "common/ids.h"
#include "mp_server/lease/ownership.h"
#include "mp_server/store/copies.h"
#include "mp_server/store/tiered_store.h"

namespace ems::server {

// Threading: thread-safe.
class HotGuests final {
 public:
  static constexpr size_t kMost = 1024;

  // All must outlive it.
  HotGuests(TieredStore* store, const Ownership* ownership, Duration keep_for, const Clock* clock)
      : store_(*store), ownership_(*ownership), keep_for_(keep_for), clock_(*clock) {}

  // A copy is about to come, and stays for keep_for from now on. False: there are too many.
  bool Admit(NamespaceRef ns, SlotId slot, std::string_view key);
  // What is over goes.
  void Expire();
  // All go.
  void Clear();
  size_t size();

 private:
  struct Guest {
    SlotId slot;
    TimePoint until;
  };
  using Guests = std::map<std::pair<NamespaceRef, std::string>, Guest>;
  void Remove(const Guests& gone);
  CopySlots& slots() const { return store_.dram().copies(); }

  TieredStore& store_;
  const Ownership& ownership_;
  const Duration keep_for_;
  const Clock& clock_;
  Guarded<Guests> guests_;
};

}  // namespace ems::server
