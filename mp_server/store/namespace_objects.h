#pragma once
// The objects of one namespace with all that each of them takes: an entry, a place in the index, a
// chunk, and its bytes of the quota.
//
// Invariant: quota used = value bytes of all entries = those in the index + those being filled +
// removed ones that are still in use. The thread that drops the last hold on an entry frees all it
// takes; an object that a client of this host looks at is retired until that one looks away.
// Bound: entries and memory as RoomMaker adds them.
#include <atomic>
#include <bitset>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "common/clock.h"
#include "common/ids.h"
#include "mp_server/index/object_entry.h"
#include "mp_server/index/object_index.h"
#include "mp_server/index/sharing.h"
#include "mp_server/index/version_heat.h"
#include "mp_server/memory/segment_pool.h"
#include "mp_server/memory/slab_pool.h"
#include "mp_server/store/copies.h"
#include "mp_server/store/kept_objects.h"
#include "mp_server/store/lookup_sampler.h"
#include "mp_server/store/namespace_usage.h"
#include "mp_server/store/quota.h"

namespace ems::server {

// Threading: thread-safe; leaf locks only, none held across another part.
class NamespaceObjects final {
 public:
  struct Options {
    NamespaceRef ref;
    std::string name;
    SegmentPool* pool = nullptr;  // must outlive this
    const Clock* clock = &Clock::System();
    kv_events::BlockEvents* events = nullptr;   // hears of its objects; must outlive this
    std::shared_ptr<const CopySlots> copies{};  // as CopyRole's
    bool immutable = false;                     // a key has one value for ever
  };
  explicit NamespaceObjects(const Options& options);
  // No hold may be left. Gives all segments back.
  ~NamespaceObjects();

  NamespaceRef ref() const { return options_.ref; }
  const std::string& name() const { return options_.name; }
  ObjectIndex& index() { return index_; }
  SlabPool& slabs() { return slabs_; }
  EntryPool& entries() { return entries_; }
  Sharing& sharing() { return sharing_; }
  Quota& quota() { return quota_; }
  LookupSampler& sampler() { return sampler_; }
  CopyRole& copies() const { return *copies_; }

  // Drops holds that the caller has: pins are counted by Unpin.
  void Drop(ObjectEntry* entry, uint32_t holds);
  void Unpin(ObjectEntry* entry);
  // Drops the index's hold on an object that is unlinked already, and counts it.
  void Evict(ObjectEntry* entry);
  // The coldest object, if it is of `size_class`; how many bytes it had. None: it cannot go.
  std::optional<uint64_t> EvictColdest(int size_class, int* skips_left);
  // If it is held, its name goes now and its memory when the last hold is released. One that is
  // settling, or waits to be written to another tier, stays, and is offered again as long as its
  // memory is to be emptied. False: it waits to be written.
  bool EvictVictim(const Victim& victim);
  // Takes out an object whose bytes have changed in memory, once for all who find it so.
  void DropDamaged(ObjectEntry* entry);
  // Takes out this very object, if it is linked and not settling. The caller has a pin on it.
  void Withdraw(ObjectEntry* entry);
  // Frees what clients do not look at any more. True: there was something.
  bool FreeRetired();
  // The same for who needs room: where a look is costly, one each 10 ms, and else false.
  bool FreeRetiredForRoom();
  // Gives empty segments back, but `keep`. How many bytes.
  uint64_t ReleaseEmpty(size_t keep);
  // Takes over what clients have used, `most` of it; when they use more than can be kept up with,
  // `sample` evenly over all of it. How many uses that stands for. Cost: 0.4 to 0.9 µs a use that
  // is taken, less when there are many.
  uint64_t TakeTouches(size_t most = ObjectIndex::kTouchesMax,
                       size_t sample = ObjectIndex::kTouchesMax);
  // A version of a model is used, or one of its blocks is here: its blocks go together, after those
  // of versions that were used before. Cost: a leaf lock or three; nothing a read pays.
  void UseVersion(uint32_t version);
  void JoinVersion(std::string_view key, uint32_t version);
  // The version is removed: what is its alone goes first.
  void ForgetVersion(uint32_t version);
  // Drops what `admit` refuses; all of it when that is null. What is in slots of `keep` is kept for
  // the slots' new owners.
  void Sweep(Admit admit, const void* context, const std::bitset<kSlotCount>* keep = nullptr);
  // What is kept for them. Who takes out of it unpins.
  KeptObjects& kept() { return kept_; }
  // Drops every object; memory goes as pins end. What asks closed() under a shard's lock, or after
  // it has added memory, sees it in time.
  void Close();
  // The memory is another process's from now on: what is dropped leaves its bytes alone.
  void Abandon() { abandoned_.store(true, std::memory_order_release); }
  bool closed() const { return closed_.load(std::memory_order_acquire); }
  void AddUsage(NamespaceUsage* usage);

 private:
  void SetState(ObjectEntry* entry, ChunkState state) const;
  void Keep(ObjectEntry* entry);
  void FreeEntry(ObjectEntry* entry);
  void FreeNow(ObjectEntry* entry);

  const Options options_;
  std::atomic<bool> closed_{false};
  std::atomic<bool> abandoned_{false};
  Quota quota_;
  SlabPool slabs_;
  EntryPool entries_;
  Sharing sharing_;  // before what mirrors into it
  LookupSampler sampler_;
  VersionHeat heat_;  // before the policies that ask it
  ObjectIndex index_;
  KeptObjects kept_;
  const std::unique_ptr<CopyRole> copies_;
  std::atomic<uint64_t> evicted_objects_{0};
  std::atomic<uint64_t> evicted_bytes_{0};
  std::atomic<int64_t> eviction_age_ns_{0};  // of the last one
  std::atomic<uint64_t> damaged_{0};
  std::atomic<int64_t> looked_ns_{0};  // when FreeRetired last did
};

// Takes over the look-ups of sampled keys that clients have settled themselves, and tells them
// which keys are sampled. True: there was something.
bool TakeSamples(NamespaceObjects* objects);
// Drops what is kept of these slots.
void DropKept(NamespaceObjects* objects, const std::bitset<kSlotCount>& slots);
// The same for who needs memory: what was used least lately, up to `count` objects. False: there
// are none.
bool EvictKept(NamespaceObjects* objects, size_t count);

}  // namespace ems::server
