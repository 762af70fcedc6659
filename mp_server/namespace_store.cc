#include "mp_server/namespace_store.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include "common/check.h"
#include "common/checksum.h"
#include "common/logging.h"
#include "common/object_key.h"
#include "mp_server/lru_policy.h"

namespace ems::server {
namespace {

constexpr Duration kIndexAgain = std::chrono::seconds(10);  // after memory was refused

constexpr int kQuotaEvictionsMax = 1 << 20;
constexpr uint64_t kTrimMax = 4096;
constexpr uint64_t kObjectsMin = 4096;
constexpr uint64_t kBytesAnObject = 512;

// Generations start at the seconds since 2020 shifted by 26 bits: they grow by less than 2^26 a
// second, so that a restart never repeats one, and 56 bits last until 2054.
uint64_t FirstGeneration() {
  constexpr int64_t kSeconds2020 = 1'577'836'800;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const int64_t seconds =
      std::chrono::duration_cast<std::chrono::seconds>(now).count() - kSeconds2020;
  return (static_cast<uint64_t>(std::max<int64_t>(seconds, 1)) << 26) & ((uint64_t{1} << 56) - 1);
}

NamespaceStore::Options WithDefaults(NamespaceStore::Options options) {
  if (!options.policy) options.policy = [] { return std::make_unique<LruPolicy>(); };
  return options;
}

Status NoRoom(uint64_t value_bytes, std::string_view why) {
  return Error(StatusCode::kResourceExhausted, "no room for a value of {}: {}; try again shortly",
               FormatBytes(value_bytes), why);
}

}  // namespace

void OwnedSlots::Set(const std::bitset<kSlotCount>& owned) {
  for (size_t word = 0; word < words_.size(); ++word) {
    uint64_t bits = 0;
    for (size_t bit = 0; bit < 64; ++bit) bits |= uint64_t{owned[word * 64 + bit]} << bit;
    words_[word].store(bits, std::memory_order_release);
  }
}

NamespaceStore::NamespaceStore(Options options)
    : options_(WithDefaults(std::move(options))),
      generation_(FirstGeneration()),
      index_(options_.clock, options_.policy, options_.events) {}

NamespaceStore::~NamespaceStore() {
  Close();
  FreeParked();
  EMS_CHECK(entries_.taken() == 0, "namespace {}: {} objects are still held", options_.name,
            entries_.taken());
  EMS_CHECK(quota_.used() == 0, "namespace {}: {} bytes are still charged", options_.name,
            quota_.used());
  ReleaseEmpty(0);
}

void NamespaceStore::SetLimits(uint64_t quota_bytes, uint64_t reserved_bytes,
                               uint64_t quota_total_bytes) {
  quota_total_bytes_.store(quota_total_bytes, std::memory_order_relaxed);
  quota_.SetLimit(quota_bytes);
  quota_.SetReserved(reserved_bytes);
}

Duration NamespaceStore::QuietFor(TimePoint now) {
  const uint64_t uses = uses_.load(std::memory_order_relaxed);
  auto last = last_use_.Lock();
  if (last->uses != uses || last->seen == TimePoint()) *last = {uses, now};
  return now - last->seen;
}

ObjectPin NamespaceStore::Get(std::string_view key, bool touch) {
  NoteUse();
  const ObjectIndex::Found found = index_.Find(options_.hash(key), key, touch, true);
  if (found.entry == nullptr) return {};
  if (HeaderMatches(*found.entry)) [[likely]]
    return ObjectPin(shared_from_this(), found.entry);
  DropDamaged(found.entry);
  Unpin(found.entry);
  return {};
}

// The key is taken from nothing that lies in the chunk: it may be what was damaged.
void NamespaceStore::DropDamaged(ObjectEntry* entry) {
  const Hash128 hash = entry->hash;
  const uint64_t value_bytes = entry->value_bytes;
  if (index_.Unlink(MakeVictim(entry), false) == nullptr) return;  // somebody was faster
  damaged_.fetch_add(1, std::memory_order_relaxed);
  DropHold(entry, kLinked);
  EMS_LOG(kWarn, "mp_server",
          "an object's bytes have changed in memory; it is dropped namespace={} bytes={} "
          "key_hash={:016x}{:016x}",
          options_.name, value_bytes, hash.hi, hash.lo);
}

std::optional<ObjectInfo> NamespaceStore::Find(std::string_view key, bool touch) {
  NoteUse();
  const ObjectIndex::Found found = index_.Find(options_.hash(key), key, touch, false);
  if (found.entry == nullptr) return std::nullopt;
  return ObjectInfo{found.value_bytes, found.checksum};
}

// What lies in front of the value against what the process knows: a stray write must become a miss,
// not bytes.
bool NamespaceStore::HeaderMatches(const ObjectEntry& entry) const {
  const ObjectHeader& header = *entry.header();
  return header.magic == kObjectMagic && header.payload_bytes == entry.value_bytes &&
         header.key_hash_lo == entry.hash.lo && header.key_hash_hi == entry.hash.hi &&
         header.key_bytes == entry.key_bytes && header.checksum == entry.checksum &&
         header.namespace_id == options_.ref.id.value() &&
         header.state_generation.load(std::memory_order_acquire) ==
             StateWord(entry.generation, ChunkState::kValid) &&
         header.header_checksum == HeaderChecksum(header);
}

Result<Reservation> NamespaceStore::Reserve(SlotId slot, std::string_view key,
                                            uint64_t value_bytes) {
  EMS_RETURN_IF_ERROR(ValidateKey(key));
  NoteUse();
  const Footprint footprint = SizeClasses::Get().For(value_bytes, key.size());
  const uint64_t limit = quota_.limit();
  if ((limit != 0 && value_bytes > limit) ||
      footprint.pages * kPageBytes > options_.pool->bytes_max()) {
    return Error(StatusCode::kOutOfRange,
                 "a value of {} is larger than the quota ({}) or the pool ({}) can hold",
                 FormatBytes(value_bytes), limit == 0 ? "none" : FormatBytes(limit),
                 FormatBytes(options_.pool->bytes_max()));
  }
  Effort effort;
  EMS_RETURN_IF_ERROR(ChargeQuota(value_bytes, &effort));
  Result<ObjectEntry*> taken_entry = TakeEntry(&effort);
  if (!taken_entry.ok()) {
    quota_.Refund(value_bytes);
    return taken_entry.status();
  }
  ObjectEntry* entry = *taken_entry;
  entry->hash = options_.hash(key);
  entry->generation = generation_.fetch_add(1, std::memory_order_relaxed) + 1;
  entry->value_bytes = value_bytes;
  entry->slot = slot.value();
  entry->holds.store(1, std::memory_order_relaxed);
  if (Status taken = TakeMemory(footprint, entry, &effort); !taken.ok()) {
    entry->holds.store(0, std::memory_order_relaxed);
    entries_.Give(entry);
    quota_.Refund(value_bytes);
    return taken;
  }
  LayOut(footprint, key, entry);
  return Reservation(shared_from_this(), entry);
}

uint64_t NamespaceStore::objects_max() const {
  const uint64_t limit = quota_.limit();
  const uint64_t bytes = limit == 0 ? options_.pool->bytes_max() : limit;
  return std::max(kObjectsMin, bytes / kBytesAnObject);
}

// At the most objects the coldest goes, as at the most bytes.
Result<ObjectEntry*> NamespaceStore::TakeEntry(Effort* effort) {
  const uint64_t most = objects_max();
  while (true) {
    if (ObjectEntry* entry = entries_.Take(most); entry != nullptr) return entry;
    if (entries_.taken() < most)
      return Error(StatusCode::kResourceExhausted, "no memory for an index entry");
    if (effort->rounds_left-- <= 0 || !EvictOne(ObjectIndex::kAnyClass, &effort->skips_left)) {
      return Error(StatusCode::kResourceExhausted,
                   "namespace {} has {} of {} objects here, one for each {} of its memory, and all "
                   "are in use; try again shortly",
                   options_.name, entries_.taken(), most, FormatBytes(kBytesAnObject));
    }
    count_evictions_.fetch_add(1, std::memory_order_relaxed);
  }
}

// Evicts first and charges then, so that use never passes the quota.
Status NamespaceStore::ChargeQuota(uint64_t value_bytes, Effort* effort) {
  for (int i = 0; i < kQuotaEvictionsMax; ++i) {
    if (quota_.TryCharge(value_bytes)) return OkStatus();
    if (FreeParked()) continue;
    FreshenOrder();
    const auto taken = index_.TakeColdest(ObjectIndex::kAnyClass, &effort->skips_left);
    if (taken.outcome != ObjectIndex::TakeOutcome::kTaken) break;
    Evict(taken.entry);
  }
  if (quota_.TryCharge(value_bytes)) return OkStatus();
  return NoRoom(value_bytes, "what fills the quota is in use");
}

Status NamespaceStore::TakeMemory(const Footprint& footprint, ObjectEntry* entry, Effort* effort) {
  while (true) {
    const bool short_slab = short_of_memory_.load(std::memory_order_relaxed);
    if (slabs_.Allocate(footprint, short_slab, entry)) return OkStatus();
    const Status added = AddSegment(footprint);
    if (added.ok()) continue;
    if (!footprint.is_run() && slabs_.Allocate(footprint, true, entry)) return OkStatus();
    if (added.code() == StatusCode::kUnavailable)
      return NoRoom(entry->value_bytes, "memory is being prepared");
    short_of_memory_.store(true, std::memory_order_relaxed);
    if (effort->rounds_left-- <= 0 || !MakeRoom(footprint, effort))
      return NoRoom(entry->value_bytes, "everything in the way is in use");
    if (slabs_.Allocate(footprint, true, entry)) return OkStatus();
  }
}

Status NamespaceStore::AddSegment(const Footprint& footprint) {
  if (closed_.load(std::memory_order_acquire))
    return Error(StatusCode::kUnavailable, "namespace {} is gone", options_.name);
  const uint64_t bytes_min = footprint.pages * kPageBytes;  // 0 for slabs: any will do
  Result<std::unique_ptr<Segment>> segment =
      options_.source->Acquire(this, std::max(bytes_min, kPageBytes));
  if (!segment.ok()) return segment.status();
  slabs_.Add(std::move(*segment));
  if (closed_.load(std::memory_order_acquire)) slabs_.DrainAll();
  return OkStatus();
}

void NamespaceStore::LayOut(const Footprint& footprint, std::string_view key, ObjectEntry* entry) {
  const bool paged = footprint.is_run() || SizeClasses::Get().at(footprint.size_class).paged;
  const uint64_t table_bytes = TableBytes(entry->value_bytes);
  EMS_CHECK(paged || table_bytes == 0, "a packed value of {} bytes", entry->value_bytes);
  // The key follows the header closely: looking an object up then takes one page of memory.
  std::byte* after = entry->head + kObjectHeaderBytes;
  entry->key_data = after + table_bytes;
  if (!paged) entry->payload = after + PackedKeyBytes(key.size());
  entry->key_bytes = static_cast<uint16_t>(key.size());
  entry->checksum = 0;
  std::memcpy(entry->key_data, key.data(), key.size());

  ObjectHeader* header = new (entry->head) ObjectHeader;
  header->state_generation.store(StateWord(entry->generation, ChunkState::kFilling),
                                 std::memory_order_relaxed);
  header->boot_id = options_.pool->boot_id();
  header->namespace_id = options_.ref.id.value();
  header->namespace_generation = options_.ref.generation;
  header->key_hash_lo = entry->hash.lo;
  header->key_hash_hi = entry->hash.hi;
  header->payload_bytes = entry->value_bytes;
  header->put_sequence = entry->generation;
  header->size_class = entry->size_class;
  header->slot = entry->slot;
  header->key_bytes = entry->key_bytes;
  header->key_offset = static_cast<uint32_t>(entry->key_data - entry->head);
  header->table_offset = table_bytes > 0 ? static_cast<uint32_t>(kObjectHeaderBytes) : 0;
  header->payload_offset = static_cast<uint64_t>(entry->payload - entry->head);
  entry->piece_sums = table_bytes == 0 ? std::span<uint64_t>(&header->checksum, 1)
                                       : std::span<uint64_t>(reinterpret_cast<uint64_t*>(after),
                                                             PieceCount(entry->value_bytes));
}

bool NamespaceStore::MayPublish(const void* given, uint16_t slot) {
  const auto& admission = *static_cast<const Admission*>(given);
  const NamespaceStore& store = *admission.store;
  if (admission.cancelled != nullptr && admission.cancelled->load(std::memory_order_acquire))
    return false;
  return !store.closed_.load(std::memory_order_acquire) && store.options_.owned->Has(slot);
}

Status NamespaceStore::Publish(Reservation reservation, uint64_t checksum,
                               const PublishOptions& options, bool* stored) {
  EMS_CHECK(reservation.entry_ != nullptr, "publishing an empty reservation");
  return reservation.store_->PublishEntry(std::exchange(reservation.entry_, nullptr), checksum,
                                          options, stored);
}

Status NamespaceStore::PublishEntry(ObjectEntry* entry, uint64_t checksum,
                                    const PublishOptions& options, bool* stored) {
  *stored = false;
  entry->checksum = checksum;
  ObjectHeader* header = entry->header();
  header->checksum = checksum;
  header->header_checksum = HeaderChecksum(*header);
  header->state_generation.store(StateWord(entry->generation, ChunkState::kValid),
                                 std::memory_order_release);
  const Footprint footprint{
      entry->size_class,
      entry->size_class == kRunClass ? static_cast<PageRuns::Page*>(entry->unit)->run_pages : 0, 0};
  const Admission admission{this, options.cancelled};
  const bool pin = options.pin != nullptr;
  const ObjectIndex::Linked linked =
      index_.Link(entry, options.overwrite, pin, &MayPublish, &admission);
  switch (linked.outcome) {
    case ObjectIndex::LinkOutcome::kReplaced:
      DropHold(linked.replaced, kLinked);
      [[fallthrough]];
    case ObjectIndex::LinkOutcome::kInserted:
      *stored = true;
      if (pin) *options.pin = ObjectPin(shared_from_this(), entry);
      MakeAhead(footprint);
      return OkStatus();
    case ObjectIndex::LinkOutcome::kDuplicate:
      DropHold(entry, 1);
      return OkStatus();
    case ObjectIndex::LinkOutcome::kExists:
      DropHold(entry, 1);
      return Error(StatusCode::kAlreadyExists, "the key holds another value");
    case ObjectIndex::LinkOutcome::kRefused:
      break;
  }
  const uint16_t slot = entry->slot;
  DropHold(entry, 1);
  return Error(StatusCode::kFailedPrecondition, "slot {} or namespace {} is no longer served here",
               slot, options_.name);
}

bool NamespaceStore::Remove(std::string_view key) {
  ObjectEntry* entry = index_.Unlink(options_.hash(key), key);
  if (entry == nullptr) return false;
  DropHold(entry, kLinked);
  return true;
}

void NamespaceStore::Evict(ObjectEntry* entry) {
  evicted_objects_.fetch_add(1, std::memory_order_relaxed);
  evicted_bytes_.fetch_add(entry->value_bytes, std::memory_order_relaxed);
  DropHold(entry, kLinked);
}

void NamespaceStore::DropHold(ObjectEntry* entry, uint32_t holds) {
  if (ObjectIndex::Drop(entry, holds)) FreeEntry(entry);
}

void NamespaceStore::Unpin(ObjectEntry* entry) {
  if (index_.Unpin(entry)) FreeEntry(entry);
}

void NamespaceStore::Abort(ObjectEntry* entry) { DropHold(entry, 1); }

// The last hold is gone: the object is in no index and nobody here looks at it. Clients may.
void NamespaceStore::FreeEntry(ObjectEntry* entry) {
  entry->header()->state_generation.store(StateWord(entry->generation, ChunkState::kRetired),
                                          std::memory_order_release);
  if (!sharing_.Park(entry)) FreeNow(entry);
}

void NamespaceStore::FreeNow(ObjectEntry* entry) {
  entry->header()->state_generation.store(StateWord(entry->generation, ChunkState::kFree),
                                          std::memory_order_release);
  const uint64_t value_bytes = entry->value_bytes;
  std::unique_ptr<Segment> emptied = slabs_.Free(entry);
  entries_.Give(entry);
  quota_.Refund(value_bytes);
  if (emptied != nullptr) options_.pool->Release(std::move(emptied));
}

void NamespaceStore::Sweep(Admit admit) {
  const Admission admission{this, nullptr};
  ObjectIndex::SweepCursor cursor;
  std::vector<ObjectEntry*> dropped;
  while (index_.Sweep(admit, &admission, &cursor, &dropped)) {
    for (ObjectEntry* entry : dropped) DropHold(entry, kLinked);
    dropped.clear();
  }
}

bool NamespaceStore::FreeParked() {
  if (!sharing_.has_parked()) return false;
  const std::vector<ObjectEntry*> unnamed = sharing_.TakeUnnamed();
  for (ObjectEntry* entry : unnamed) FreeNow(entry);
  return !unnamed.empty();
}

bool NamespaceStore::TakeTouches(size_t most, size_t sample) {
  TouchRings& touches = sharing_.touches();
  if (touches.empty()) return false;
  std::array<Hash128, ObjectIndex::kTouchesMax> hashes;
  const auto taken = touches.Take(std::span(hashes).first(std::min(most, hashes.size())), sample);
  index_.Touch(std::span(hashes).first(taken.hashes));
  return taken.written > 0;
}

void NamespaceStore::MaintainShared() {
  SharedIndex* shared = sharing_.index();
  if (shared == nullptr || closed()) return;
  const uint64_t objects = index_.objects();
  if (!shared->NeedsTable(objects)) return;
  const TimePoint now = options_.clock->Now();
  if (index_refused_ && now < index_again_at_) return;
  index_again_at_ = now + kIndexAgain;
  if (const Status added = shared->AddTable(objects); !added.ok()) {
    if (!std::exchange(index_refused_, true)) {
      EMS_LOG(kWarn, "mp_server", "no memory for the shared index of namespace {}: {}",
              options_.name, Message(added));
    }
    return;
  }
  index_refused_ = false;
  for (size_t shard = 0; shard < ObjectIndex::kShards; ++shard) index_.MoveShard(shard, shared);
  shared->DropOldTables();
}

uint64_t NamespaceStore::pin_bytes_max() const {
  // Of the whole quota: this server's share may be next to nothing until it owns slots.
  const uint64_t pool = options_.pool->bytes_max();
  const uint64_t quota = quota_total_bytes_.load(std::memory_order_relaxed);
  return std::min(pool, quota == 0 ? pool : quota) / 2;
}

void NamespaceStore::Close() {
  closed_.store(true, std::memory_order_release);
  if (SharedIndex* shared = sharing_.index(); shared != nullptr) shared->SetClosed();
  Sweep(nullptr);
  slabs_.DrainAll();
  ReleaseEmpty(0);
}

void NamespaceStore::DropLostSlots() { Sweep(&MayPublish); }

bool NamespaceStore::TrimToQuota() {
  int skips_left = kSkipsMax;
  for (uint64_t i = 0; i < kTrimMax && quota_.exceeded(); ++i) {
    const auto taken = index_.TakeColdest(ObjectIndex::kAnyClass, &skips_left);
    if (taken.outcome != ObjectIndex::TakeOutcome::kTaken) return false;
    Evict(taken.entry);
  }
  return quota_.exceeded();
}

uint64_t NamespaceStore::EvictColdest(uint64_t objects, uint64_t value_bytes) {
  int skips_left = kSkipsMax;
  uint64_t bytes = 0;
  for (uint64_t i = 0; i < objects; ++i) {
    const auto taken = index_.TakeColdest(ObjectIndex::kAnyClass, &skips_left);
    if (taken.outcome != ObjectIndex::TakeOutcome::kTaken) return i;
    bytes += taken.entry->value_bytes;
    Evict(taken.entry);
    if (bytes >= value_bytes) return i + 1;
  }
  return objects;
}

bool NamespaceStore::SurrenderSegment(bool now) {
  std::vector<Victim> victims;
  std::unique_ptr<Segment> empty;
  if (!slabs_.DrainSegment(&victims, &empty)) return false;
  if (empty != nullptr) options_.pool->Release(std::move(empty));
  {
    auto doomed = doomed_.Lock();
    doomed->insert(doomed->end(), victims.begin(), victims.end());
  }
  if (now) EvictDoomed(SIZE_MAX);
  return true;
}

uint64_t NamespaceStore::ReleaseEmpty(size_t keep) {
  uint64_t bytes = 0;
  for (std::unique_ptr<Segment>& segment : slabs_.TakeEmpty(keep)) {
    bytes += segment->size_bytes();
    options_.pool->Release(std::move(segment));
  }
  return bytes;
}

NamespaceUsage NamespaceStore::Usage() {
  NamespaceUsage usage;
  usage.ref = options_.ref;
  usage.name = options_.name;
  usage.objects = index_.objects();
  usage.value_bytes = quota_.used();
  usage.quota_bytes = quota_.limit();
  usage.reserved_bytes = quota_.reserved();
  const SlabPool::Stats slabs = slabs_.stats();
  usage.segment_bytes = slabs.segment_bytes;
  usage.chunk_bytes = slabs.chunk_bytes;
  usage.evicted_objects = evicted_objects_.load(std::memory_order_relaxed);
  usage.evicted_bytes = evicted_bytes_.load(std::memory_order_relaxed);
  usage.objects_max = objects_max();
  usage.count_evictions = count_evictions_.load(std::memory_order_relaxed);
  usage.damaged_objects = damaged_objects();
  usage.pinned_objects = index_.pinned_objects();
  usage.parked_bytes = sharing_.parked_bytes();
  usage.linked_bytes = index_.value_bytes();
  usage.touches = sharing_.touches().total();
  if (SharedIndex* shared = sharing_.index(); shared != nullptr) {
    usage.shared_index_bytes = shared->table_bytes();
    usage.shared_index_left_out = shared->left_out();
  }
  return usage;
}

}  // namespace ems::server
