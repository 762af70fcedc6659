#include "mp_server/store/namespace_objects.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include "common/check.h"
#include "common/logging.h"
#include "common/object_key.h"
#include "mp_server/index/version_policy.h"

namespace ems::server {
namespace {

constexpr uint64_t kWaitingShare = 256;  // of the pool: what may wait for a look at the hazards
constexpr Duration kLookEvery = std::chrono::milliseconds(10);
constexpr size_t kSamplesTaken = 256;
constexpr int kSampleRoundsMax = 64;

}  // namespace

NamespaceObjects::NamespaceObjects(const Options& options)
    : options_(options),
      index_(
          options.clock, [this] { return std::make_unique<VersionPolicy>(&heat_); },
          options.events),
      copies_(std::make_unique<CopyRole>(options.copies, options.immutable)) {}

NamespaceObjects::~NamespaceObjects() {
  sharing_.Forget();
  for (ObjectEntry* entry : kept_.TakeAll()) Unpin(entry);
  FreeRetired();
  EMS_CHECK(entries_.taken() == 0, "namespace {}: {} objects are still held", options_.name,
            entries_.taken());
  EMS_CHECK(quota_.used() == 0, "namespace {}: {} bytes are still charged", options_.name,
            quota_.used());
  ReleaseEmpty(0);
}

void NamespaceObjects::Drop(ObjectEntry* entry, uint32_t holds) {
  if (ObjectIndex::Drop(entry, holds)) FreeEntry(entry);
}

void NamespaceObjects::Unpin(ObjectEntry* entry) {
  if (index_.Unpin(entry)) FreeEntry(entry);
}

void NamespaceObjects::Evict(ObjectEntry* entry) {
  evicted_objects_.fetch_add(1, std::memory_order_relaxed);
  evicted_bytes_.fetch_add(entry->value_bytes, std::memory_order_relaxed);
  const int64_t now_ns = options_.clock->Now().time_since_epoch().count();
  eviction_age_ns_.store(now_ns - entry->touched_ns.load(std::memory_order_relaxed),
                         std::memory_order_relaxed);
  Drop(entry, kLinked);
}

std::optional<uint64_t> NamespaceObjects::EvictColdest(int size_class, int* skips_left) {
  const auto taken = index_.TakeColdest(size_class, skips_left);
  if (taken.outcome != ObjectIndex::TakeOutcome::kTaken) return std::nullopt;
  const uint64_t value_bytes = taken.entry->value_bytes;
  Evict(taken.entry);
  return value_bytes;
}

bool NamespaceObjects::EvictVictim(const Victim& victim) {
  bool unwritten = false;
  if (ObjectEntry* entry = index_.Unlink(victim, &unwritten); entry != nullptr) {
    Evict(entry);
  } else if (ObjectEntry* kept = kept_.Take(victim); kept != nullptr) {
    Unpin(kept);
  }
  return !unwritten;
}

void NamespaceObjects::Withdraw(ObjectEntry* entry) {
  if (index_.Unlink(MakeVictim(entry)) != nullptr) Drop(entry, kLinked);
}

// The key is taken from nothing that lies in the chunk: it may be what was damaged.
void NamespaceObjects::DropDamaged(ObjectEntry* entry) {
  const Hash128 hash = entry->hash;
  const uint64_t value_bytes = entry->value_bytes;
  if (index_.Unlink(MakeVictim(entry)) == nullptr) return;  // another thread, or it is settling
  damaged_.fetch_add(1, std::memory_order_relaxed);
  Drop(entry, kLinked);
  EMS_LOG(kWarn, "mp_server",
          "an object's bytes have changed in memory; it is dropped namespace={} bytes={} "
          "key_hash={:016x}{:016x}",
          options_.name, value_bytes, hash.hi, hash.lo);
}

void NamespaceObjects::SetState(ObjectEntry* entry, ChunkState state) const {
  if (abandoned_.load(std::memory_order_acquire)) [[unlikely]]
    return;
  entry->header()->state_generation.store(StateWord(entry->generation, state),
                                          std::memory_order_release);
}

// The last hold is gone: the object is in no index and nobody here looks at it. Clients may.
void NamespaceObjects::FreeEntry(ObjectEntry* entry) {
  SetState(entry, ChunkState::kRetired);
  if (!sharing_.Retire(entry)) return FreeNow(entry);
  // One look for many; a small part of the memory waits for it.
  if (sharing_.waiting() >= Sharing::kWaitingMax ||
      sharing_.waiting_bytes() * kWaitingShare >= options_.pool->bytes_max())
    FreeRetired();
}

void NamespaceObjects::FreeNow(ObjectEntry* entry) {
  SetState(entry, ChunkState::kFree);
  const uint64_t value_bytes = entry->value_bytes;
  std::unique_ptr<Segment> emptied = slabs_.Free(entry);
  const bool charged = !std::exchange(entry->uncharged, false);
  entries_.Give(entry);
  if (charged) quota_.Refund(value_bytes);
  if (emptied != nullptr) options_.pool->Release(std::move(emptied));
}

bool NamespaceObjects::FreeRetired() {
  if (!sharing_.has_retired()) return false;
  looked_ns_.store(options_.clock->Now().time_since_epoch().count(), std::memory_order_relaxed);
  const std::vector<ObjectEntry*> unnamed = sharing_.TakeUnnamed();
  for (ObjectEntry* entry : unnamed) FreeNow(entry);
  return !unnamed.empty();
}

bool NamespaceObjects::FreeRetiredForRoom() {
  if (sharing_.look_is_costly() &&
      options_.clock->Now().time_since_epoch().count() <
          looked_ns_.load(std::memory_order_relaxed) + kLookEvery.count())
    return false;
  return FreeRetired();
}

uint64_t NamespaceObjects::ReleaseEmpty(size_t keep) {
  uint64_t bytes = 0;
  for (std::unique_ptr<Segment>& segment : slabs_.TakeEmpty(keep)) {
    bytes += segment->size_bytes();
    options_.pool->Release(std::move(segment));
  }
  return bytes;
}

uint64_t NamespaceObjects::TakeTouches(size_t most, size_t sample) {
  TouchRings& touches = sharing_.touches();
  if (touches.empty()) return 0;
  std::array<Hash128, ObjectIndex::kTouchesMax> hashes;
  const auto taken = touches.Take(std::span(hashes).first(std::min(most, hashes.size())), sample);
  index_.Touch(std::span(hashes).first(taken.hashes));
  return taken.written;
}

bool TakeSamples(NamespaceObjects* objects) {
  SampleRings& rings = objects->sharing().samples();
  if (rings.empty()) return false;
  bool any = false;
  std::array<Hash128, kSamplesTaken> hashes;
  SampleRings::Taken taken{.hashes = hashes.size()};
  for (int i = 0; i < kSampleRoundsMax && taken.hashes == hashes.size(); ++i) {
    taken = rings.Take(hashes);
    if (taken.lost > 0) objects->sampler().Lose(taken.lost);
    // What a page says was found is not asked: what is known here, or lies here, was.
    for (const Hash128& hash : std::span(hashes).first(taken.hashes))
      if (!objects->sampler().Reuse(hash))
        objects->sampler().First(hash, objects->index().BytesOf(hash));
    any = any || taken.hashes > 0;
  }
  if (SharedIndex* shared = objects->sharing().index(); shared != nullptr)
    shared->SetSampleBelow(objects->sampler().below());
  return any;
}

void NamespaceObjects::UseVersion(uint32_t version) {
  heat_.Use(version, options_.clock->Now().time_since_epoch().count());
}

void NamespaceObjects::JoinVersion(std::string_view key, uint32_t version) {
  index_.JoinVersion(KeyHash(key), key, version, &heat_);
}

void NamespaceObjects::ForgetVersion(uint32_t version) {
  heat_.Forget(version);
  index_.PublishAllColdest();
}

void NamespaceObjects::Sweep(Admit admit, const void* context,
                             const std::bitset<kSlotCount>* keep) {
  ObjectIndex::SweepCursor cursor;
  std::vector<ObjectEntry*> dropped;
  while (index_.Sweep(admit, context, &cursor, &dropped)) {
    for (ObjectEntry* entry : dropped) {
      if (keep != nullptr && (*keep)[entry->slot]) {
        Keep(entry);
      } else {
        Drop(entry, kLinked);
      }
    }
    dropped.clear();
  }
}

// A client that found it before it was unlinked must not believe that it is what the key means. One
// that holds it keeps it: its look began before.
void NamespaceObjects::Keep(ObjectEntry* entry) {
  SetState(entry, ChunkState::kRetired);
  entry->uncharged = true;
  quota_.Refund(entry->value_bytes);
  index_.TurnIntoPin(entry);
  if (ObjectEntry* const before = kept_.Add(entry); before != nullptr) Unpin(before);
  if (!closed()) return;
  for (ObjectEntry* one : kept_.TakeAll()) Unpin(one);
}

void DropKept(NamespaceObjects* objects, const std::bitset<kSlotCount>& slots) {
  for (ObjectEntry* entry : objects->kept().TakeSlots(slots)) objects->Unpin(entry);
}

bool EvictKept(NamespaceObjects* objects, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    ObjectEntry* const entry = objects->kept().TakeColdest();
    if (entry == nullptr) return i > 0;
    objects->Unpin(entry);
  }
  return true;
}

void NamespaceObjects::Close() {
  closed_.store(true, std::memory_order_release);
  if (SharedIndex* shared = sharing_.index(); shared != nullptr) shared->SetClosed();
  Sweep(nullptr, nullptr);
  for (ObjectEntry* entry : kept_.TakeAll()) Unpin(entry);
  slabs_.DrainAll();
  ReleaseEmpty(0);
}

void NamespaceObjects::AddUsage(NamespaceUsage* usage) {
  usage->ref = options_.ref;
  usage->name = options_.name;
  const ObjectIndex::Totals linked = index_.totals();
  usage->objects = linked.objects;
  usage->linked_bytes = linked.value_bytes;
  usage->value_bytes = quota_.used();
  usage->quota_bytes = quota_.limit();
  usage->reserved_bytes = quota_.reserved();
  const SlabPool::Stats slabs = slabs_.stats();
  usage->segment_bytes = slabs.segment_bytes;
  usage->chunk_bytes = slabs.chunk_bytes;
  usage->evicted_objects = evicted_objects_.load(std::memory_order_relaxed);
  usage->evicted_bytes = evicted_bytes_.load(std::memory_order_relaxed);
  usage->eviction_age = Duration(eviction_age_ns_.load(std::memory_order_relaxed));
  if (const int64_t coldest_ns = index_.ColdestTouch(); coldest_ns != EvictionPolicy::kNever) {
    const int64_t now_ns = options_.clock->Now().time_since_epoch().count();
    usage->coldest_age = Duration(now_ns - std::clamp<int64_t>(coldest_ns, 0, now_ns - 1));
  }
  usage->damaged_objects = damaged_.load(std::memory_order_relaxed);
  const KeptObjects::Totals kept = kept_.totals();
  usage->kept_objects = kept.objects;
  usage->kept_bytes = kept.value_bytes;
  usage->pinned_objects = index_.pinned_objects() - std::min(index_.pinned_objects(), kept.objects);
  usage->retired_bytes = sharing_.retired_bytes();
  usage->touches = sharing_.touches().total();
  if (SharedIndex* shared = sharing_.index(); shared != nullptr) {
    usage->shared_index_bytes = shared->table_bytes();
    usage->shared_index_left_out = shared->left_out();
  }
}

}  // namespace ems::server
