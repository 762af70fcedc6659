#pragma once
// The index of one namespace's objects by key: 16 shards, each a hash table and an eviction order
// under one leaf lock.
//
// Invariant: an entry is linked in the shard that its hash names exactly while its `holds` has
// kLinked. The 128-bit hash only finds candidates; the full key, as it lies in the chunk, decides.
// Bound: one bucket for each object at most; tables grow a bucket at a time, so no call ever
// rehashes everything.
#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/clock.h"
#include "common/guarded.h"
#include "common/hash.h"
#include "mp_server/index/eviction_policy.h"
#include "mp_server/index/object_entry.h"
#include "mp_server/kv_events/block_events.h"

namespace ems::server {

class SharedIndex;
class VersionHeat;

// Decides, under the shard's lock, whether an object may still be linked. Must be cheap and take no
// lock.
using Admit = bool (*)(const void* context, uint16_t slot);

// Threading: thread-safe. Cost: one leaf lock a call unless said; no allocation but when a table
// grows.
class ObjectIndex final {
 public:
  static constexpr size_t kShards = 16;

  struct Found {
    ObjectEntry* entry = nullptr;  // valid while pinned
    uint64_t value_bytes = 0;
    uint64_t checksum = 0;
  };
  enum class LinkOutcome { kInserted, kReplaced, kDuplicate, kExists, kRefused };
  struct Linked {
    LinkOutcome outcome = LinkOutcome::kRefused;
    ObjectEntry* replaced = nullptr;  // kReplaced: unlinked; the caller drops kLinked
  };
  enum class TakeOutcome { kTaken, kOtherClass, kNone };
  struct Taken {
    TakeOutcome outcome = TakeOutcome::kNone;
    ObjectEntry* entry = nullptr;  // kTaken: unlinked; the caller drops kLinked
  };
  static constexpr int kAnyClass = -1;

  // `events`, unless null, hears of each object that is linked or unlinked; it must outlive the
  // index.
  ObjectIndex(const Clock* clock, const EvictionPolicyFactory& policy,
              kv_events::BlockEvents* events = nullptr);
  ObjectIndex(const ObjectIndex&) = delete;
  ObjectIndex& operator=(const ObjectIndex&) = delete;

  // The object of `key`; entry is null on a miss. With `pin`, holds is one higher. With `touch` it
  // was used at `now`, by default when this is called.
  Found Find(Hash128 hash, std::string_view key, bool touch, bool pin, TimePoint now = {});
  // The same for many keys at once, without a pin: `found`, an entry for each, says what was there.
  // Bound: kFindMax keys a call. Cost: a shard's lock for 16 keys at a time; of these the cache
  // misses overlap.
  static constexpr size_t kFindMax = 256;
  void FindMany(std::span<const Hash128> hashes, std::span<const std::string_view> keys, bool touch,
                TimePoint now, std::span<Found> found);
  // Ends a pin; true when the caller must free the entry.
  [[nodiscard]] static bool Drop(ObjectEntry* entry, uint32_t holds);
  [[nodiscard]] bool Unpin(ObjectEntry* entry);
  // Turns the index's hold on an object that is unlinked already, which is the caller's, into a
  // pin.
  void TurnIntoPin(ObjectEntry* entry);

  // Makes `entry` visible, turning the caller's hold into the index's, if `admit` says so. The same
  // length and checksum under the key: kDuplicate. Other content: kExists, or kReplaced with
  // `overwrite`. With `pin`, and once it is visible, it is pinned as by Find.
  Linked Link(ObjectEntry* entry, bool overwrite, bool pin, Admit admit, const void* context);
  // The same for one that the process before this one had linked, and used at `touched_ns` last;
  // colder ones come first. False: there is one of its key.
  [[nodiscard]] bool Adopt(ObjectEntry* entry, int64_t touched_ns);
  // Calls `visit` for each linked object, under its shard's lock. Cost: each shard's lock for
  // O(objects): for who stops.
  void Visit(const std::function<void(const ObjectEntry&)>& visit);
  // The object, unlinked; nullptr when there is none. The caller drops kLinked.
  ObjectEntry* Unlink(Hash128 hash, std::string_view key);
  // The same for one object, if it is still the one that was meant, and not settling. `unwritten`,
  // unless null: nor is one unlinked that waits to be written to another tier, but this is set.
  ObjectEntry* Unlink(const Victim& victim, bool* unwritten = nullptr);

  // Unlinks the coldest object of all shards if it is of `size_class`. Held ones move to the warm
  // end (they are in use); at most *skips_left of those, which is counted down.
  Taken TakeColdest(int size_class, int* skips_left);
  // When the coldest object was touched, as a hint; INT64_MAX: there is none. Cost: no lock.
  int64_t ColdestTouch() const;

  // Unlinks objects of slots for which `admit` says no; all of them when `admit` is null. The
  // caller drops kLinked of `out`. Works in steps: call with *cursor = 0 until it returns false.
  // Bounded by 256 buckets a call.
  struct SweepCursor {
    size_t shard = 0;
    size_t bucket = 0;
  };
  bool Sweep(Admit admit, const void* context, SweepCursor* cursor, std::vector<ObjectEntry*>* out);

  // Appends the hashes of some objects: with *cursor = 0, until it returns false, each that is
  // linked meanwhile at least once. Bounded by 256 buckets a call.
  bool SomeHashes(SweepCursor* cursor, std::vector<Hash128>* hashes);

  // What a walk over keys says of each; times are nanoseconds on the store's clock.
  struct Listed {
    std::string key;
    uint64_t value_bytes = 0;
    uint16_t slot = 0;
    int64_t linked_ns = 0;
    int64_t used_ns = 0;
  };
  // Appends some keys that begin with `prefix`: with *cursor = {}, until it returns false, each
  // that is linked all the while at least once, twice if its bucket is split meanwhile. A cursor
  // may be anything. Bounded by 256 buckets a call; ends behind the bucket with the `most`th key.
  // Cost: a shard's lock, and for each object that is looked at its key's cache miss.
  bool SomeKeys(std::string_view prefix, size_t most, SweepCursor* cursor,
                std::vector<Listed>* keys);
  // Whether an object with this hash has been linked since before then.
  bool HasBefore(Hash128 hash, int64_t linked_ns);

  // Records uses of objects that clients have reported; hashes of no object are passed
  // over, of several objects with one hash any is taken. Bound: kTouchesMax hashes a call.
  // Cost: a shard's lock for about 0.1 µs an object, 16 objects at a time.
  static constexpr size_t kTouchesMax = 1024;
  void Touch(std::span<const Hash128> hashes);

  // Value bytes of an object with this hash; of several, of any. Nothing: there is none.
  std::optional<uint64_t> BytesOf(Hash128 hash);

  // The object of `key`, if there is one, is a block of this version of a model, too: the policy
  // evicts it with the version's others. `heat` is the policy's. Cost: a shard's lock, twice.
  void JoinVersion(Hash128 hash, std::string_view key, uint32_t version, VersionHeat* heat);
  // What has become colder without being touched is noticed now. Cost: each shard's lock in turn.
  void PublishAllColdest();

  // From now on `mirror` follows what is linked in the shard; what is linked already goes in first.
  // Cost: the shard's lock for about 50 ns an object. `mirror` must outlive the index.
  void MoveShard(size_t shard, SharedIndex* mirror);

  // As SharedIndex's, of all shards.
  void SetMissesProve(SharedIndex* shared, bool prove);

  struct Totals {
    uint64_t objects = 0;
    uint64_t value_bytes = 0;
  };
  Totals totals();
  uint64_t pinned_objects() const;

 private:
  struct Table {
    std::vector<ObjectEntry*> buckets;  // linear hashing: between 2^n and 2^(n+1) of them
    std::unique_ptr<EvictionPolicy> policy;
    SharedIndex* mirror = nullptr;
    uint64_t objects = 0;
    uint64_t value_bytes = 0;

    size_t BucketOf(Hash128 hash) const;
    ObjectEntry* Find(Hash128 hash, std::string_view key) const;
    void Insert(ObjectEntry* entry);
    void Remove(ObjectEntry* entry);
    void Grow();
  };
  static constexpr int64_t kNever = EvictionPolicy::kNever;
  struct alignas(64) Shard {
    Guarded<Table> table;
    // When its coldest object was touched; kNever: empty. Written under the lock, read by
    // TakeColdest as a hint.
    alignas(64) std::atomic<int64_t> coldest_ns{kNever};
    std::atomic<int64_t> pinned{0};
  };

  static size_t ShardOf(Hash128 hash) { return hash.hi >> 60; }
  static constexpr size_t kWindow = 16;
  using Window = std::array<ObjectEntry*, kWindow>;
  // Calls `look(table, which)`, under the shard's lock, for the hashes of each shard in their
  // order, kWindow at most at once; `which` are their places.
  template <typename Look>
  void ByShard(std::span<const Hash128> hashes, Look look);
  // The first entry with each of these hashes, or null; on its way to the cache is what comes next:
  // the keys, with `keys`, and the neighbours in the order, with `order`.
  static Window Gather(const Table& table, std::span<const Hash128> hashes,
                       std::span<const uint16_t> which, bool keys, bool order);
  static void PublishColdest(Shard& shard, const Table& table);
  ObjectEntry* Detach(Shard& shard, Table& table, ObjectEntry* entry);
  int64_t NowNs() const { return clock_->Now().time_since_epoch().count(); }
  size_t ColdestShard(int64_t* bound_ns) const;

  void Tell(Hash128 hash, bool stored) const;

  const Clock* clock_;
  kv_events::BlockEvents* const events_;
  std::array<Shard, kShards> shards_;
};

}  // namespace ems::server
