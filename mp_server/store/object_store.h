#pragma once
// Objects in DRAM, by namespace: find, pin, reserve, publish, remove. The tier policy lives here
// and nowhere else.
//
// Invariant: an object is reachable only between Publish and Remove/eviction, whole, with its key,
// length and checksum; its bytes stay where they are as long as a pin on it lives. Each byte of
// value is charged to exactly one namespace from Reserve until the chunk is free again. Bound:
// values of a namespace ≤ its quota share, chunks ≤ the pool; index entries only for chunks, and
// one for each 512 bytes of quota share or pool.
#include <bitset>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cluster/quota_part.h"
#include "cluster/view_cache.h"
#include "common/clock.h"
#include "common/ids.h"
#include "common/object_key.h"
#include "common/status.h"
#include "mp_server/kv_events/block_events.h"
#include "mp_server/memory/segment_pool.h"
#include "mp_server/store/copies.h"
#include "mp_server/store/namespace_usage.h"
#include "mp_server/store/object_pin.h"
#include "mp_server/store/reservation.h"

namespace ems::server {

class MovedSlots;
class NamespaceStore;

// Threading: thread-safe. No call blocks on I/O; evicting happens on the caller's thread and costs
// O(evicted).
class ObjectStore final {
 public:
  struct Options {
    SegmentPool* pool = nullptr;  // must outlive the store
    double high_watermark = 1;    // 1: leave it to Puts, which free ahead for each other
    double low_watermark = 0.96;
    // A namespace that nobody has used for so long can lose all memory above its reservation.
    Duration quiet_after = std::chrono::seconds(60);
    // What is not in the shared index may still be elsewhere on this server: clients must ask.
    bool another_tier = false;
    const Clock* clock = &Clock::System();
    // Unless null, hears of each object of `events_of` that becomes visible or goes; must outlive
    // the store.
    kv_events::BlockEvents* events = nullptr;
    std::string events_of = {};
    Hash128 (*hash)(std::string_view key) = &KeyHash;
    // Where it is told which slots have moved; null: what is lost is dropped. Must outlive the
    // store.
    MovedSlots* moved = nullptr;
  };
  explicit ObjectStore(const Options& options);
  ~ObjectStore();

  // `hurry` is called when memory is to be emptied where objects wait to be written to another
  // tier; it must not block. Before the store is used.
  void SetHurry(std::function<void()> hurry);
  // Takes over namespaces and policies; those that are gone or have a new generation lose their
  // objects at once, their memory as pins end. Quotas are multiplied by `share`, the part of all
  // slots that this server owns.
  void SetNamespaces(const NamespaceTable& table, double share);
  // Parts of quotas that this server is to hold instead, until its share of the slots or the quota
  // changes. What is above a part goes in the next rounds of "ems-evict". Any thread.
  void SetQuotaParts(std::span<const QuotaPart> parts);
  // Which slots may be published to. Objects of other slots are dropped before this returns, or
  // kept for others if the slots are in `keep`. Calls come from one thread.
  void SetOwnedSlots(const std::bitset<kSlotCount>& owned,
                     const std::bitset<kSlotCount>& keep = {});
  // Of which slots copies are held here: Widen them before a view is installed.
  CopySlots& copies();
  // Those of the installed view; what does not belong here any more is dropped before this returns.
  // From SetOwnedSlots' thread.
  void SetCopySlots(const CopySlots::Columns& columns);
  // What is kept of these slots goes.
  void DropKept(const std::bitset<kSlotCount>& slots);
  MovedSlots* moved() const;

  // The namespace of this very generation, for who looks many keys up in it; null: it is not known
  // here. Once it is deleted it is closed and has no objects.
  std::shared_ptr<NamespaceStore> Open(NamespaceRef ns) const;
  std::string NameOf(NamespaceRef ns) const;  // empty: not known

  // The object of `key`, pinned; empty pin: a miss. `touch` moves it to the young end of the LRU.
  // Cost: one leaf lock, no allocation.
  ObjectPin Get(NamespaceRef ns, std::string_view key, bool touch);
  std::optional<ObjectInfo> Find(NamespaceRef ns, std::string_view key, bool touch);

  // Takes room for a value, evicting the namespace's oldest objects as needed.
  // Errors: kFailedPrecondition  unknown namespace    kOutOfRange  larger than quota or pool can
  // ever hold
  //   kResourceExhausted  everything in the way is pinned or memory is still being prepared: try
  //   again shortly
  Result<Reservation> Reserve(NamespaceRef ns, SlotId slot, std::string_view key,
                              uint64_t value_bytes);

  // How long ago at most an object of another server has been used that is worth its room here:
  // Duration::max() where nothing is evicted for it; else only what is colder is. Zero: none is.
  Duration IdleMost(NamespaceRef ns, std::string_view key, uint64_t value_bytes) const;

  // Makes the object visible, with `checksum` as CombinePieces(piece_sums()). An existing object of
  // the same length and checksum stays and this one is given back (ok, `*stored` false); one with
  // other content is replaced if `overwrite`. Errors: kAlreadyExists    kFailedPrecondition  slot
  // or namespace lost since Reserve, even if the slot has come back
  static Status Publish(Reservation reservation, uint64_t checksum, const PublishOptions& options,
                        bool* stored);

  // False: there was none. Pins on it keep the bytes, not the name.
  bool Remove(NamespaceRef ns, std::string_view key);

  // --- For clients on this host (docs/ONE_SIDED_READS.md).
  // What the shared indexes follow, and until when they may be believed: published after the
  // objects of lost slots are gone.
  void SetCurrent(ViewVersion view, TimePoint readable_until);
  // From its return on no reader of a shared index begins with what may change, whatever SetCurrent
  // says meanwhile or later. For good. Any thread. Cost: as SetCurrent, no I/O.
  void StopReaders();
  // The namespace, ready to be shared; keeps it alive. Errors: kFailedPrecondition  unknown
  // namespace    kResourceExhausted, kInternal  no memory file to be had
  Result<std::shared_ptr<NamespaceStore>> Share(NamespaceRef ns);

  // Evicts until the pool is under the low watermark if it is above the high one, and until the
  // namespaces have no more memory than the pool has (SegmentPool::Resize): the coldest segments
  // first, those of namespaces above their reservation before others. Called by the "ems-evict"
  // thread.
  // False: no Put has come since the last round, and no memory is owed, so the next one has time.
  bool EvictToWatermark();

  // --- For what goes from one process to the next (mp_server/restart).
  // Every namespace that is known here.
  std::vector<std::shared_ptr<NamespaceStore>> Stores() const;
  // A namespace that nobody can open yet; Enter makes it known, unless it is already.
  std::shared_ptr<NamespaceStore> Prepare(const NamespaceInfo& info) const;
  void Enter(std::shared_ptr<NamespaceStore> store);

  // Appends the hashes of some objects; with all 0, until it returns false, each that is there
  // meanwhile at least once. Cost: one leaf lock, 256 buckets.
  bool SomeHashes(NamespaceRef ns, uint64_t* shard, uint64_t* bucket, std::vector<Hash128>* hashes);

  std::vector<NamespaceUsage> Usage() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ems::server
