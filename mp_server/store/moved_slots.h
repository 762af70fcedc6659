#pragma once
// The slots that have moved to this server, whose earlier objects another one keeps, and those that
// have moved away, whose objects are kept here; decides which of them may become visible again.
//
// An era of a slot is the time in which one server owns it: the views of one history from an epoch
// on until the slot moves again. Two rules keep an old value from coming back:
//   - What is kept of a lost slot is for the owner of the very next era alone. It is all that was
//     true at the beginning of that era, as far as it is there.
//   - An owner that has had the slot from the beginning of the era marks each key that it takes a
//     change of, before the change is visible. What another server kept may become visible here
//     only if its key is not marked, which is asked under the same lock as the change is made.
// An owner that has marked from the beginning to the end of its era can say of a key that it took
// no change of it: what the owner before has kept is still true then, in the era after.
//
// Once all that was kept of a slot has been brought, or is known to be gone, its owner needs none
// of this any more: Finish ends it as the end of its time does.
//
// Marks are bits of a filter: a key may count as marked that is not, which is a miss. They are of
// an era: what was changed here in an earlier one comes back with a slot that comes back. Each
// group of slots has a part of the filter of its own: who asks about a slot looks only where
// changes of its slots are marked, so a group may be emptied once none of its slots is open and
// nobody is told of an owner before for one. The fuller a part, the more keys count as marked (2 %
// of them at 16384 marks); at kFullBits, where that is every other key, the slots of the group are
// not open any more, and those of other groups are. Bound: 1 MiB of filter, 128 KiB of epochs.
#include <array>
#include <atomic>
#include <bitset>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "common/clock.h"
#include "common/guarded.h"
#include "common/hash.h"
#include "common/ids.h"

namespace ems::server {

struct Era {
  uint64_t history = 0;  // as SlotHistory's; 0: not known, which is no era
  uint64_t since = 0;    // epoch of the view by which the slot got this owner
  friend bool operator==(const Era&, const Era&) = default;
};

// Who keeps the objects of the time before `era`.
struct Origin {
  Era era;
  NodeId node;
};

// Threading: thread-safe; Gain and Lose from one thread.
class MovedSlots final {
 public:
  static constexpr size_t kGroups = 64;
  static constexpr size_t GroupOf(SlotId slot) { return slot.value() % kGroups; }

  // Slots are open, and objects kept, for so long.
  MovedSlots(Duration keep_for, const Clock* clock);

  // --- The owner of an era.
  // A view gives `owned`, each since the epoch that `since` says. Opens the slots of `origins`,
  // which have had no change in their era yet; those that are open in another era are not any more.
  // Before a request for them is let through.
  void Gain(uint64_t history, const std::vector<uint64_t>& since,
            const std::bitset<kSlotCount>& owned, const std::map<uint16_t, Origin>& origins);
  struct Opened {
    SlotId slot;
    Origin origin;
    TimePoint until;  // when it is not open any more
  };
  std::vector<Opened> opened();
  // All that was kept for this era has been asked for: nobody is asked any more, changes are not
  // marked, and who gets the slot next is told of nobody. What is on its way lands no more, and
  // the slot does not open again in this era. False: it is not open in it.
  bool Finish(SlotId slot, Era era);
  // Who had the slot before its origin keeps something of it, too.
  void Reach(SlotId slot, Era era, NodeId further);
  // From whom the open slots came, ascending; of those that Reach names, too.
  std::vector<NodeId> origins();
  // Whom to ask for what was in the slot before; none: it is not open.
  std::optional<Origin> OriginOf(SlotId slot);
  // A change of the key is about to be made. Cost: one load where the slot is not open.
  void Mark(SlotId slot, NamespaceRef ns, Hash128 hash) {
    const uint64_t since = open_since_[slot.value() % kSlotCount].load(std::memory_order_acquire);
    if (since != 0) [[unlikely]]
      SetMark(GroupOf(slot), ns, hash, since);
  }
  // The same where it is not known in which slot the key is: in all groups and eras. Cost: 64
  // marks.
  void Mark(NamespaceRef ns, Hash128 hash) {
    if (open_count_.load(std::memory_order_acquire) != 0) [[unlikely]]
      for (size_t group = 0; group < kGroups; ++group) SetMark(group, ns, hash, kAllEras);
  }
  bool IsOpen(SlotId slot) const {
    return open_since_[slot.value() % kSlotCount].load(std::memory_order_acquire) != 0;
  }
  bool AnyOpen() const { return open_count_.load(std::memory_order_acquire) != 0; }
  // Of a key in that slot, in the era of the slot since then.
  bool IsMarked(SlotId slot, NamespaceRef ns, Hash128 hash, uint64_t since) const;
  // Whether what was kept for `era` of this server may become visible here. Takes no lock.
  bool MayLand(SlotId slot, uint64_t since, NamespaceRef ns, Hash128 hash) const {
    return open_since_[slot.value() % kSlotCount].load(std::memory_order_acquire) == since &&
           since != 0 && !IsMarked(slot, ns, hash, since);
  }

  // --- Who had it before.
  // The same view: `kept` are lost, and their objects kept for the era that begins with it; slots
  // that are not in `owned` are not open any more. After the last change in them.
  void Lose(uint64_t history, const std::vector<uint64_t>& since,
            const std::bitset<kSlotCount>& owned, const std::bitset<kSlotCount>& kept);
  // Whether objects of the slot are kept for this era.
  bool Keeps(SlotId slot, Era era);
  // Whom to ask for keys that were not changed here, of those kept for this era.
  std::optional<Origin> Before(SlotId slot, Era era);
  // All that Before would say: whom the owners of lost slots ask as well, ascending.
  std::vector<NodeId> vouched_for();
  // Where no object of the key is kept for `era`: whom to ask instead, if no change of the key was
  // taken here while the slot was this server's.
  std::optional<Origin> Untouched(SlotId slot, Era era, NamespaceRef ns, Hash128 hash);

  // Closes what has been open for too long. Returns the slots whose objects are not kept any more.
  // Looks once a second.
  std::bitset<kSlotCount> Expire();
  // Slots that are kept for others, as Expire returns them later.
  std::bitset<kSlotCount> kept_slots();
  uint32_t open_slots() const { return open_count_.load(std::memory_order_relaxed); }

 private:
  static constexpr size_t kGroupBits = size_t{1} << 17;
  static constexpr size_t kGroupWords = kGroupBits / 64;
  static constexpr int kProbes = 4;
  static constexpr uint64_t kAllEras = 0;                       // in place of when one began
  static constexpr uint32_t kFullBits = kGroupBits / 100 * 84;  // 0.84 to the fourth is a half
  struct Group {
    std::atomic<uint32_t> bits{0};  // that are set
    std::atomic<bool> full{false};
    std::atomic<bool> all_eras{false};  // some mark is of kAllEras
  };
  struct Open {
    Origin origin;
    TimePoint until;
    NodeId further = kNoNode;
  };
  struct Lost {
    Era era;
    TimePoint until;
    std::optional<Origin> before;  // the slot was open here all the time
  };
  struct State {
    std::map<uint16_t, Open> open;
    std::map<uint16_t, Lost> lost;
    TimePoint next_look{};
  };
  void SetMark(size_t group, NamespaceRef ns, Hash128 hash, uint64_t since);
  bool HasMark(size_t group, uint64_t mixed) const;
  bool IsFull(SlotId slot) const {
    return groups_[GroupOf(slot)].full.load(std::memory_order_acquire);
  }
  void Close(State* state, const std::vector<uint16_t>& slots);
  void CloseFull();
  // Those in which no mark is asked about.
  std::bitset<kGroups> Unused(const State& state) const;
  void Empty(size_t group);
  static uint64_t Mixed(NamespaceRef ns, Hash128 hash, uint64_t since);

  const Duration keep_for_;
  const Clock* const clock_;
  // Of the era in which the slot is open; 0: it is not.
  std::array<std::atomic<uint64_t>, kSlotCount> open_since_{};
  std::atomic<uint32_t> open_count_{0};
  std::array<Group, kGroups> groups_{};
  std::atomic<bool> some_full_{false};  // there is something for CloseFull
  // A group after the other.
  const std::unique_ptr<std::array<std::atomic<uint64_t>, kGroups * kGroupWords>> filter_;
  Guarded<State> state_;
};

}  // namespace ems::server
