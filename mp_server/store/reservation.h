#pragma once
// Room for an object that is being received. Gives chunk and quota back unless it is published.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "common/bytes.h"
#include "common/clock.h"
#include "common/hash.h"
#include "common/ids.h"
#include "mp_server/store/object_pin.h"

namespace ems::server {

class NamespaceStore;

// Move-only; must not outlive the store.
// Threading: one thread at a time (holder).
class Reservation final {
 public:
  Reservation() = default;
  MutableBytes value() const;              // fill all of it
  std::span<uint64_t> piece_sums() const;  // fill all of it, too
  NamespaceRef ns() const;
  Hash128 hash() const;
  std::string_view key() const;
  explicit operator bool() const { return entry_ != nullptr; }
  // It may become visible before then alone; the earliest of several counts.
  void set_until(TimePoint until) { until_ = std::min(until_, until); }

 private:
  friend class NamespaceStore;
  struct Abort {
    void operator()(ObjectEntry* entry) const;
    std::shared_ptr<NamespaceStore> store;
    NamespaceObjects* objects;  // the store's; null with it
  };
  // `slot_losses`: of the entry's slot, when it was made.
  Reservation(std::shared_ptr<NamespaceStore> store, NamespaceObjects* objects, ObjectEntry* entry,
              uint32_t slot_losses);
  std::unique_ptr<ObjectEntry, Abort> entry_;
  uint32_t slot_losses_ = 0;
  TimePoint until_ = TimePoint::max();
};

struct PublishOptions {
  bool overwrite = false;
  // Refuses when this is true by the time the object would become visible.
  const std::atomic<bool>* cancelled = nullptr;
  ObjectPin* pin = nullptr;  // receives a pin on it when it is stored
  // No eviction takes it, and nobody who finds it damaged, until pin->Settle(). A Remove, another
  // Put and the loss of its slot do.
  bool settling = false;
  // What another server has kept: it becomes visible only if the slot is open in the era that began
  // then (MovedSlots), and no change of the key has been taken. 0: it is a change itself.
  uint64_t kept_for = 0;
  // It is a copy of what another server owns, or owned lately: it may be in a slot of which this
  // server holds copies.
  bool copy = false;
  // It comes from another server or tier: others may have copies of it already.
  bool elsewhere = false;
};

}  // namespace ems::server
