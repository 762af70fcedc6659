#pragma once
// Copies of objects that another server owns, in namespaces with replicas: of which slots this
// server holds them, and who hears of what is to be copied.
//
// Beside these there are copies of hot objects, in any immutable namespace, wherever their slots
// are (hot/hot_guests.h). A copy is an object like any other: it is in the index of its namespace,
// is found, pinned, evicted and charged like one that was put here. Its slot alone says that it is
// a copy. When the slot becomes this server's, its copies are its objects at once. Only immutable
// namespaces have replicas: a key has one value for ever, so that whoever has one has the right
// one.
#include <algorithm>
#include <array>
#include <atomic>
#include <bitset>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

#include "cluster/slot_copies.h"
#include "common/clock.h"
#include "common/ids.h"
#include "mp_server/store/owned_slots.h"

namespace ems::server {

// Hears of objects that other servers are to hold copies of. Threading: thread-safe; must not
// block, nor call the store.
class CopySink {
 public:
  virtual ~CopySink() = default;
  // An object has become visible here, of a namespace with so many replicas, and is no copy.
  // `fresh`: by a Put; else it comes from elsewhere, and others may have it.
  virtual void OnStored(NamespaceRef ns, uint32_t replicas, SlotId slot, std::string_view key,
                        bool fresh) = 0;
  // The key was removed by its owner.
  virtual void OnRemoved(NamespaceRef ns, uint32_t replicas, SlotId slot, std::string_view key) = 0;
};

// The slots of which this server holds the first, and the second copies.
// Threading: thread-safe; Set, Widen and now from one thread.
class CopySlots final {
 public:
  using Columns = std::array<std::bitset<kSlotCount>, SlotCopies::kMost>;

  void Set(const Columns& columns) {
    for (size_t i = 0; i < columns.size(); ++i) columns_[i].Set(columns[i]);
    now_ = columns;
  }
  const Columns& now() const { return now_; }
  // The same, and those of before: while a view is installed, so that of slots which are lost or
  // gained in between what is a copy before or after stays.
  void Widen(const Columns& columns) {
    Columns both = now_;
    for (size_t i = 0; i < both.size(); ++i) both[i] |= columns[i];
    Set(both);
  }
  // Who hears of what is to be copied; null: nobody. Constant once the store is used; must outlive
  // it.
  void SetSink(CopySink* sink) { sink_ = sink; }
  CopySink* sink() const { return sink_; }
  // Until then other servers may have copies of what is not here of slots that have come here.
  void SeekUntil(TimePoint until) {
    seek_until_ns_.store(until.time_since_epoch().count(), std::memory_order_release);
  }
  TimePoint SeeksUntil() const {
    return TimePoint(Duration(seek_until_ns_.load(std::memory_order_acquire)));
  }
  // Whether copies of a namespace with so many replicas belong here.
  bool Has(SlotId slot, uint32_t replicas) const {
    const uint32_t copies = std::min<uint32_t>(replicas, SlotCopies::kMost + 1);
    for (uint32_t i = 0; i + 1 < copies; ++i)
      if (columns_[i].Has(slot.value())) return true;
    return false;
  }
  // One more, or one less, of the hot objects of other servers that are held here is in the slot
  // (hot/hot_guests.h).
  void AddGuest(SlotId slot) {
    guests_[slot.value() % kSlotCount].fetch_add(1, std::memory_order_acq_rel);
  }
  void DropGuest(SlotId slot) {
    guests_[slot.value() % kSlotCount].fetch_sub(1, std::memory_order_acq_rel);
  }
  bool HasGuests(SlotId slot) const {
    return guests_[slot.value() % kSlotCount].load(std::memory_order_acquire) != 0;
  }

 private:
  std::array<OwnedSlots, SlotCopies::kMost> columns_;
  std::array<std::atomic<uint16_t>, kSlotCount> guests_{};
  Columns now_;
  CopySink* sink_ = nullptr;
  std::atomic<int64_t> seek_until_ns_{0};
};

// What copies mean to one namespace. Threading: thread-safe.
class CopyRole final {
 public:
  // `slots` may be null: no copies are held here, and nobody copies.
  CopyRole(std::shared_ptr<const CopySlots> slots, bool immutable)
      : slots_(std::move(slots)), immutable_(immutable) {}

  // On how many servers an object is to be, this one included.
  void SetReplicas(uint32_t replicas) { replicas_.store(replicas, std::memory_order_relaxed); }
  uint32_t replicas() const { return replicas_.load(std::memory_order_relaxed); }
  // Whether copies of the slot's objects belong here.
  bool Holds(SlotId slot) const {
    if (slots_ == nullptr || !immutable_) return false;
    return slots_->Has(slot, replicas()) || slots_->HasGuests(slot);
  }
  // Whether others may have copies of what is not here.
  bool Seeks(TimePoint now) const {
    return replicas() > 1 && slots_ != nullptr && slots_->SeeksUntil() > now;
  }
  // Null: nobody is told of objects.
  CopySink* sink() const { return replicas() > 1 && slots_ != nullptr ? slots_->sink() : nullptr; }

 private:
  const std::shared_ptr<const CopySlots> slots_;
  const bool immutable_;
  std::atomic<uint32_t> replicas_{1};
};

}  // namespace ems::server
