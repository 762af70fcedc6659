#pragma once
// Objects of slots that this server has lost, kept for the slots' new owners: neither clients nor
// readers of the shared index find them.
//
// Invariant: an entry in here has a pin that is this class's, is in no index, and its header says
// kRetired. Their bytes are not charged to the quota of the namespace: they go before anything else
// when memory is short. Bound: entries and memory of the namespace.
#include <bitset>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/guarded.h"
#include "common/hash.h"
#include "common/ids.h"
#include "mp_server/index/object_entry.h"

namespace ems::server {

// Threading: thread-safe. Who takes entries out of here unpins them.
class KeptObjects final {
 public:
  // Takes over a pin on `entry`. Of two with one hash the later one stays; the other is returned.
  [[nodiscard]] ObjectEntry* Add(ObjectEntry* entry);
  // With a pin of its own; null: there is none.
  ObjectEntry* Find(Hash128 hash, std::string_view key);
  // The one that was used least lately; null: there is none.
  ObjectEntry* TakeColdest();
  // When that one was used; EvictionPolicy::kNever: there is none.
  int64_t ColdestTouch();
  // If it is in here still.
  ObjectEntry* Take(const Victim& victim);
  std::vector<ObjectEntry*> TakeSlots(const std::bitset<kSlotCount>& slots);

  // When an object was used last, and its generation: the order of those in here.
  using Age = std::pair<int64_t, uint64_t>;
  struct Listed {
    std::string key;
    uint64_t value_bytes = 0;
    Age age;
  };
  // Objects that were used before `below`, the one that was used last first, up to
  // `keys_max` and until their keys have `bytes_max`. True: those are all. Cost: one leaf lock,
  // O(keys_max).
  bool ListSlot(SlotId slot, Age below, size_t keys_max, uint64_t bytes_max,
                std::vector<Listed>* listed);
  std::vector<ObjectEntry*> TakeAll();

  struct Totals {
    uint64_t objects = 0;
    uint64_t value_bytes = 0;
  };
  Totals totals();

 private:
  struct HashOf {
    size_t operator()(const Hash128& hash) const { return hash.lo; }
  };
  struct State {
    std::unordered_map<Hash128, ObjectEntry*, HashOf> by_hash;
    std::map<Age, ObjectEntry*> by_age;
    std::unordered_map<uint16_t, std::map<Age, ObjectEntry*>> by_slot;
    uint64_t value_bytes = 0;

    ObjectEntry* Remove(ObjectEntry* entry);
  };
  static Age AgeOf(const ObjectEntry& entry) {
    return {entry.touched_ns.load(std::memory_order_relaxed), entry.generation};
  }

  Guarded<State> state_;
};

}  // namespace ems::server
