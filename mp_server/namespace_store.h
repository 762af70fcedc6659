#pragma once
// The objects of one namespace on this server: its memory, its index, its quota, and how room is
// made in them.
//
// Invariant: quota used = value bytes of all entries = those in the index + those being filled +
// removed ones still pinned. Bound: objects_max() entries; one Reserve evicts at most what its
// quota or its footprint need, looks at most at 1024 held objects, and drains memory at most 8
// times.
//
// Once the namespace can get no more memory, each Publish makes up for what its object took, so
// that the next Reserve finds its room free: a chunk of the same class, and a run as long as lately
// needed (a thirty-second of the memory at most). What goes is the coldest object, as long as less
// than a twenty-eighth of the memory is free; beyond that, free memory lies in pieces, and the
// neighbours of one that lose least go.
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/clock.h"
#include "common/ids.h"
#include "common/object_key.h"
#include "mp_server/object_entry.h"
#include "mp_server/object_index.h"
#include "mp_server/object_store.h"
#include "mp_server/quota.h"
#include "mp_server/segment_pool.h"
#include "mp_server/sharing.h"
#include "mp_server/slab_pool.h"

namespace ems::server {

// Where a namespace gets more memory from; decides between namespaces. Threading: thread-safe.
class SegmentSource {
 public:
  virtual ~SegmentSource() = default;
  // Errors: kUnavailable  it is being prepared: better wait than evict    kResourceExhausted  evict
  // your own
  virtual Result<std::unique_ptr<Segment>> Acquire(NamespaceStore* asker, uint64_t bytes_min) = 0;
};

// The slots that may be published to: one bit each. Threading: thread-safe.
class OwnedSlots final {
 public:
  void Set(const std::bitset<kSlotCount>& owned);
  bool Has(uint16_t slot) const {
    return (words_[slot / 64 % words_.size()].load(std::memory_order_acquire) >> (slot % 64) & 1) !=
           0;
  }

 private:
  std::array<std::atomic<uint64_t>, kSlotCount / 64> words_{};
};

// Threading: thread-safe; leaf locks only, none held across another part.
class NamespaceStore final : public std::enable_shared_from_this<NamespaceStore> {
 public:
  struct Options {
    NamespaceRef ref;
    std::string name;
    SegmentPool* pool = nullptr;      // must outlive the store
    SegmentSource* source = nullptr;  // likewise
    std::shared_ptr<const OwnedSlots> owned;
    const Clock* clock = &Clock::System();
    EvictionPolicyFactory policy;  // default: LRU
    bool another_tier = false;     // as in ObjectStore::Options
    Hash128 (*hash)(std::string_view key) = &KeyHash;
    kv_events::BlockEvents* events = nullptr;  // hears of its objects; must outlive the store
  };
  explicit NamespaceStore(Options options);
  // No pin and no reservation may be left. Gives all segments back.
  ~NamespaceStore();

  // `quota_bytes` 0: no limit. A quota below what is used is reached by TrimToQuota and Reserve.
  // `quota_total_bytes`: that of all servers together.
  void SetLimits(uint64_t quota_bytes, uint64_t reserved_bytes, uint64_t quota_total_bytes);
  NamespaceRef ref() const { return options_.ref; }
  const std::string& name() const { return options_.name; }

  // As in ObjectStore.
  ObjectPin Get(std::string_view key, bool touch);
  std::optional<ObjectInfo> Find(std::string_view key, bool touch);
  Result<Reservation> Reserve(SlotId slot, std::string_view key, uint64_t value_bytes);
  static Status Publish(Reservation reservation, uint64_t checksum, const PublishOptions& options,
                        bool* stored);
  bool Remove(std::string_view key);

  // Refuses what is published from now on and drops every object; memory goes as pins end.
  void Close();
  // Drops the objects of slots that are not owned any more.
  void DropLostSlots();
  // Evicts the coldest until use is within the quota, 4096 objects at most. True: there is more to
  // do.
  bool TrimToQuota();
  // Evicts the coldest objects, up to `objects` and until `value_bytes` have gone; how many.
  uint64_t EvictColdest(uint64_t objects, uint64_t value_bytes);
  // Chooses the coldest segment to be given back, and empties it now or lets FinishDraining do it;
  // what is held in it goes as it is let go. False: none found.
  bool SurrenderSegment(bool now);
  // Evicts up to `count` objects from memory that is being emptied; how many.
  size_t EvictDoomed(size_t count);
  // Evicts all that is left in such memory. Called by "ems-evict".
  void FinishDraining();
  // Gives empty segments back, but `keep`. How many bytes.
  uint64_t ReleaseEmpty(size_t keep);

  // --- For clients on this host (docs/ONE_SIDED_READS.md).
  // Begins to share; the index follows with the next MaintainShared. From one thread ("ems-shm").
  Status Share() {
    return sharing_.Start(options_.ref, options_.pool->boot_id(), !options_.another_tier);
  }
  Sharing& sharing() { return sharing_; }
  Result<SlabPool::Opened> OpenSegment(uint32_t id) { return slabs_.OpenSegment(id); }
  std::vector<uint32_t> SegmentIds() { return slabs_.SegmentIds(); }
  // Takes over what clients have used, `most` of it; when they use more than can be kept up with,
  // `sample` evenly over all of it. True: there was something. Cost: about 0.7 µs a use.
  bool TakeTouches(size_t most, size_t sample);
  bool TakeTouches() { return TakeTouches(ObjectIndex::kTouchesMax, ObjectIndex::kTouchesMax); }
  // Makes or enlarges the shared index when needed. From one thread ("ems-evict").
  // Cost: when it does, each shard's lock in turn for about 50 ns an object.
  void MaintainShared();
  // Frees what clients do not look at any more. True: there was something.
  bool FreeParked();
  // Half of what the namespace could have in this server's memory: what the views of one client may
  // pin.
  uint64_t pin_bytes_max() const;
  bool closed() const { return closed_.load(std::memory_order_acquire); }

  // Grows with each Reserve.
  uint64_t newest_generation() const { return generation_.load(std::memory_order_relaxed); }

  // As ObjectIndex's.
  bool SomeHashes(ObjectIndex::SweepCursor* cursor, std::vector<Hash128>* hashes) {
    return index_.SomeHashes(cursor, hashes);
  }

  NamespaceUsage Usage();
  uint64_t segment_bytes() { return slabs_.stats().segment_bytes; }
  // Of segments that stay, and of those being emptied.
  uint64_t kept_bytes() { return slabs_.stats().kept_bytes; }
  uint64_t leaving_bytes() {
    const SlabPool::Stats stats = slabs_.stats();
    return stats.segment_bytes - stats.kept_bytes;
  }
  // How long nobody has asked for anything, as far as calls of this one have seen it.
  Duration QuietFor(TimePoint now);
  uint64_t chunk_bytes() { return slabs_.stats().chunk_bytes; }
  bool HasSegmentOf(uint64_t bytes) { return slabs_.HasSegmentOf(bytes); }
  uint64_t reserved_bytes() const { return quota_.reserved(); }
  // How many objects there may be: one for each 512 bytes of quota or, without one, of the pool, so
  // that index entries (about 200 bytes each) cannot take more memory than values; 4096 at least.
  uint64_t objects_max() const;
  uint64_t entries() { return entries_.taken(); }
  // Objects found damaged in memory (header against index, value against checksum) and dropped.
  uint64_t damaged_objects() const { return damaged_.load(std::memory_order_relaxed); }

  // For ObjectPin and Reservation.
  void DropDamaged(ObjectEntry* entry);
  void Unpin(ObjectEntry* entry);
  void Abort(ObjectEntry* entry);

 private:
  static constexpr int kSkipsMax = 1024;  // held objects that one call passes over
  struct Effort {                         // what one Reserve may still spend
    int skips_left = kSkipsMax;
    int drains_left = 8;
    int rounds_left = 256;  // chunks of its class that it frees and loses to others
  };
  struct Admission {
    const NamespaceStore* store = nullptr;
    const std::atomic<bool>* cancelled = nullptr;
  };
  static bool MayPublish(const void* admission, uint16_t slot);
  Status PublishEntry(ObjectEntry* entry, uint64_t checksum, const PublishOptions& options,
                      bool* stored);
  Status ChargeQuota(uint64_t value_bytes, Effort* effort);
  Status TakeMemory(const Footprint& footprint, ObjectEntry* entry, Effort* effort);
  Status AddSegment(const Footprint& footprint);
  bool MakeRoom(const Footprint& footprint, Effort* effort);
  Result<ObjectEntry*> TakeEntry(Effort* effort);
  bool EvictOne(int size_class, int* skips_left);
  bool DrainCheapest(uint32_t pages, bool spare_young);
  bool DrainFor(const Footprint& footprint, uint32_t pages);
  void Doom(const std::vector<Victim>& victims);
  void MakeAhead(const Footprint& last);
  bool FreeAhead(const Footprint& last, uint32_t run_pages, int* searches_left);
  uint32_t RunAhead(const Footprint& last);
  void NoteUse() {
    uses_.store(uses_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }
  bool MayAsk();
  void FreshenOrder();
  void EvictVictim(const Victim& victim);
  void LayOut(const Footprint& footprint, std::string_view key, ObjectEntry* entry);
  bool HeaderMatches(const ObjectEntry& entry) const;
  void Evict(ObjectEntry* entry);
  void DropHold(ObjectEntry* entry, uint32_t holds);
  void FreeEntry(ObjectEntry* entry);
  void FreeNow(ObjectEntry* entry);
  void Sweep(Admit admit);

  const Options options_;
  std::atomic<bool> closed_{false};
  std::atomic<uint64_t> generation_;
  Quota quota_;
  std::atomic<uint64_t> quota_total_bytes_{0};
  SlabPool slabs_;
  EntryPool entries_;
  Sharing sharing_;  // before what mirrors into it
  ObjectIndex index_;
  Guarded<std::vector<Victim>> doomed_;  // in memory that is being emptied
  std::atomic<bool> short_of_memory_{false};
  std::atomic_flag making_ahead_ = ATOMIC_FLAG_INIT;
  // What Puts have needed lately, roughly: threads may overwrite each other.
  std::atomic<uint32_t> puts_{0}, longest_{0}, longest_before_{0};
  std::atomic<int> last_class_{ObjectIndex::kAnyClass};
  std::atomic<int64_t> next_ask_ns_{0}, next_fresh_ns_{0};
  struct Use {
    uint64_t uses = 0;
    TimePoint seen;
  };
  Guarded<Use> last_use_;
  std::atomic<uint64_t> uses_{0};  // approximate: it only has to change
  std::atomic<uint64_t> evicted_objects_{0};
  std::atomic<uint64_t> evicted_bytes_{0};
  std::atomic<uint64_t> count_evictions_{0};
  std::atomic<uint64_t> damaged_{0};
  bool index_refused_ = false;  // ems-evict's, as the next
  TimePoint index_again_at_{};
};

}  // namespace ems::server
