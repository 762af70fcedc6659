#pragma once
// Finds room for an object of one namespace: quota, an entry and a chunk. When there is none it
// evicts, and empties neighbouring memory so that it can be used for another size.
//
// Bound: objects_max() entries; one Take evicts at most what its quota or its footprint need, looks
// at most at 1024 held objects, and drains memory at most 8 times.
//
// Once the namespace can get no more memory, each Publish makes up for what its object took, so
// that the next Take finds its room free: a chunk of the same class, and a run as long as lately
// needed (a thirty-second of the memory at most). What goes is the coldest object, as long as less
// than a twenty-eighth of the memory is free; beyond that, free memory lies in pieces, and the
// neighbours of one that lose least go. Objects of lost slots that are kept for others go before
// all of that.
#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "common/clock.h"
#include "common/guarded.h"
#include "mp_server/memory/segment_pool.h"
#include "mp_server/memory/size_classes.h"
#include "mp_server/store/allowance.h"
#include "mp_server/store/namespace_objects.h"
#include "mp_server/store/segment_source.h"

namespace ems::server {

// Threading: thread-safe; leaf locks only, none held across another part.
class RoomMaker final {
 public:
  // All must outlive this.
  RoomMaker(NamespaceObjects* objects, SegmentPool* pool, SegmentSource* source,
            const Clock* clock);

  // An object as it is known before there is room for it.
  struct Wanted {
    Hash128 hash;
    uint64_t generation = 0;
    uint64_t value_bytes = 0;
    uint16_t slot = 0;
    Footprint footprint;
  };
  // An entry for it, charged and with memory; the caller has its only hold.
  // Errors: kResourceExhausted  everything in the way is in use, or memory is being prepared
  Result<ObjectEntry*> Take(const Wanted& wanted);
  // Makes up for what the last object has taken. One thread at a time; others leave it to that one,
  // or to their next Take.
  void MakeAhead(const Footprint& last);

  // What an object must have been used within to be worth the room that it takes: without eviction
  // any (Duration::max()), else what the next to go was not used for. `spare`: false counts what is
  // free as taken.
  Duration IdleMost(uint64_t value_bytes, const Footprint& footprint, bool spare);

  // Evicts the coldest until use is within the quota, 4096 objects at most. True: there is more to
  // do.
  bool TrimToQuota();
  // Evicts the coldest objects, up to `objects` and until `value_bytes` have gone; how many.
  uint64_t EvictColdest(uint64_t objects, uint64_t value_bytes);
  // Chooses the coldest segment to be given back, and empties it now or lets FinishDraining do it;
  // objects that are held go as their holds are released. False: none found.
  bool SurrenderSegment(bool now);
  // Evicts up to `count` objects that are marked: they lie in memory that is being emptied. How
  // many.
  size_t EvictMarked(size_t count);
  // Evicts all that is left in such memory, but what is settling or waits to be written. Called by
  // "ems-evict".
  void FinishDraining();

  NamespaceObjects& objects() { return *objects_; }
  // What the namespace may have on this server: its share of the quota, or the pool.
  uint64_t memory_bytes() const;
  // Values that clients' Puts are receiving, and objects that answers pin while they are sent.
  Allowance& filling() { return filling_; }
  Allowance& sending() { return sending_; }
  // How many objects there may be: one for each 512 bytes of quota or, without one, of the pool, so
  // that index entries (about 200 bytes each) cannot take more memory than values; 4096 at least.
  uint64_t objects_max() const;
  // Objects evicted because there were objects_max.
  uint64_t count_evictions() const { return count_evictions_.load(std::memory_order_relaxed); }
  // Bytes of segments above the reservation, without those being given back; below it: negative.
  int64_t excess_bytes();

 private:
  static constexpr int kSkipsMax = 1024;  // held objects that one call passes over
  struct Effort {                         // what one Take may still spend
    int skips_left = kSkipsMax;
    int drains_left = 8;
    int rounds_left = 256;  // chunks of its class that it frees and loses to others
  };
  Status Charge(uint64_t value_bytes, Effort* effort);
  Result<ObjectEntry*> TakeEntry(Effort* effort);
  Status TakeMemory(const Footprint& footprint, ObjectEntry* entry, Effort* effort);
  Status AddSegment(const Footprint& footprint);
  bool MakeRoom(const Footprint& footprint, Effort* effort);
  bool EvictOne(int size_class, int* skips_left) {
    return objects_->EvictColdest(size_class, skips_left).has_value();
  }
  // The same; where a look at clients' hazards is costly, as many as share one. They are free then,
  // and so is what else has waited for it.
  bool EvictSome(int size_class, int* skips_left);
  bool DrainCheapest(uint32_t pages, bool spare_young);
  bool DrainFor(const Footprint& footprint, uint32_t pages);
  // Those that stay because they are not written yet will be soon.
  void EvictVictims(std::span<const Victim> victims);
  void MarkForEviction(const std::vector<Victim>& victims);
  bool FreeAhead(const Footprint& last, uint32_t run_pages, int* searches_left);
  uint32_t RunAhead(const Footprint& last);
  bool MayAsk();
  void FreshenOrder();

  NamespaceObjects* const objects_;
  SegmentPool* const pool_;
  SegmentSource* const source_;
  const Clock* const clock_;
  // What each Take and MakeAhead look at lies together.
  std::atomic<bool> short_of_memory_{false};
  std::atomic_flag making_ahead_ = ATOMIC_FLAG_INIT;
  // What Puts have needed lately, roughly: threads may overwrite each other.
  std::atomic<uint32_t> puts_{0}, longest_{0}, longest_before_{0};
  std::atomic<int> last_class_{ObjectIndex::kAnyClass};
  std::atomic<int64_t> next_ask_ns_{0}, next_fresh_ns_{0};
  Guarded<std::vector<Victim>> marked_;  // in memory that is being emptied
  std::atomic<uint64_t> count_evictions_{0};
  Allowance filling_, sending_;
};

}  // namespace ems::server
