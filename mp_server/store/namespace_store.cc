#include "mp_server/store/namespace_store.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <utility>

#include "common/check.h"
#include "common/checksum.h"
#include "common/logging.h"
#include "common/object_key.h"

namespace ems::server {
namespace {

constexpr Duration kIndexAgain = std::chrono::seconds(10);  // after memory was refused

// Generations start at the seconds since 2020 shifted by 26 bits: they grow by less than 2^26 a
// second, so that a restart never repeats one, and 56 bits last until 2054.
uint64_t FirstGeneration() {
  constexpr int64_t kSeconds2020 = 1'577'836'800;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const int64_t seconds =
      std::chrono::duration_cast<std::chrono::seconds>(now).count() - kSeconds2020;
  return (static_cast<uint64_t>(std::max<int64_t>(seconds, 1)) << 26) & ((uint64_t{1} << 56) - 1);
}

}  // namespace

NamespaceStore::NamespaceStore(Options options)
    : options_(std::move(options)),
      generation_(FirstGeneration()),
      objects_(options_),
      room_(&objects_, options_.pool, options_.source, options_.clock) {
  EMS_CHECK(options_.owned != nullptr, "namespace {}: no slots to publish to", options_.name);
}

NamespaceStore::~NamespaceStore() { Close(); }

void NamespaceStore::SetLimits(uint64_t quota_bytes, uint64_t reserved_bytes,
                               uint64_t quota_total_bytes) {
  quota_total_bytes_.store(quota_total_bytes, std::memory_order_relaxed);
  if (std::exchange(even_bytes_, quota_bytes) != quota_bytes)
    objects_.quota().SetLimit(quota_bytes);
  objects_.quota().SetReserved(reserved_bytes);
}

void NamespaceStore::SetPart(const QuotaPart& part) {
  if (part.ref != ref() || part.part_bytes == 0 || even_bytes_ == 0 ||
      part.quota_bytes != quota_total_bytes_.load(std::memory_order_relaxed))
    return;
  objects_.quota().SetLimit(part.part_bytes);
}

Duration NamespaceStore::QuietFor(TimePoint now) {
  auto last = last_use_.Lock();
  if (used_.exchange(false, std::memory_order_relaxed) || *last == TimePoint()) *last = now;
  return now - *last;
}

ObjectPin NamespaceStore::Get(std::string_view key, bool touch, TimePoint now) {
  NoteUse();
  const Hash128 hash = options_.hash(key);
  const ObjectIndex::Found found = objects_.index().Find(hash, key, touch, true, now);
  if (touch) Sample(hash, found);
  if (found.entry == nullptr) return {};
  if (HeaderMatches(*found.entry, options_.ref.id)) [[likely]]
    return {Keep(), found.entry};
  objects_.DropDamaged(found.entry);
  objects_.Unpin(found.entry);
  return {};
}

std::optional<ObjectInfo> NamespaceStore::Find(std::string_view key, bool touch, TimePoint now) {
  NoteUse();
  const Hash128 hash = options_.hash(key);
  const ObjectIndex::Found found = objects_.index().Find(hash, key, touch, false, now);
  if (touch) Sample(hash, found);
  if (found.entry == nullptr) return std::nullopt;
  return ObjectInfo{found.value_bytes, found.checksum};
}

std::optional<ObjectInfo> NamespaceStore::FindForPut(std::string_view key, TimePoint now) {
  NoteUse();
  const Hash128 hash = options_.hash(key);
  const ObjectIndex::Found found = objects_.index().Find(hash, key, true, false, now);
  if (found.entry == nullptr) return std::nullopt;
  if (objects_.sampler().Samples(hash)) objects_.sampler().Store(hash, found.value_bytes);
  return ObjectInfo{found.value_bytes, found.checksum};
}

void NamespaceStore::FindMany(std::span<const std::string_view> keys, bool touch, TimePoint now,
                              std::span<ObjectIndex::Found> found) {
  NoteUse();
  std::array<Hash128, ObjectIndex::kFindMax> hashes;
  EMS_CHECK(keys.size() <= hashes.size(), "{} keys in one call", keys.size());
  std::ranges::transform(keys, hashes.begin(), options_.hash);
  objects_.index().FindMany(std::span(hashes).first(keys.size()), keys, touch, now, found);
  for (size_t i = 0; i < keys.size() && touch; ++i) Sample(hashes[i], found[i]);
}

void NamespaceStore::Sample(Hash128 hash, const ObjectIndex::Found& found) {
  LookupSampler& sampler = objects_.sampler();
  if (!sampler.Samples(hash)) [[likely]]
    return;
  sampler.Look(hash, found.entry == nullptr ? std::nullopt : std::optional(found.value_bytes));
}

// What lies in front of the value against what the process knows: a stray write must become a miss,
// not bytes.
bool HeaderMatches(const ObjectEntry& entry, NamespaceId ns) {
  const ObjectHeader& header = *entry.header();
  return header.magic == kObjectMagic && header.payload_bytes == entry.value_bytes &&
         header.key_hash_lo == entry.hash.lo && header.key_hash_hi == entry.hash.hi &&
         header.key_bytes == entry.key_bytes && header.checksum == entry.checksum &&
         header.namespace_id == ns.value() &&
         header.state_generation.load(std::memory_order_acquire) ==
             StateWord(entry.generation, ChunkState::kValid) &&
         header.header_checksum == HeaderChecksum(header);
}

Result<Reservation> NamespaceStore::Reserve(SlotId slot, std::string_view key,
                                            uint64_t value_bytes) {
  EMS_RETURN_IF_ERROR(ValidateKey(key));
  NoteUse();
  const uint32_t slot_losses = options_.owned->losses(slot.value());
  const Footprint footprint = SizeClasses::Get().For(value_bytes, key.size());
  const uint64_t limit = objects_.quota().limit();
  if ((limit != 0 && value_bytes > limit) ||
      footprint.pages * kPageBytes > options_.pool->bytes_max()) {
    return Error(StatusCode::kOutOfRange,
                 "a value of {} is larger than the quota ({}) or the pool ({}) can hold",
                 FormatBytes(value_bytes), limit == 0 ? "none" : FormatBytes(limit),
                 FormatBytes(options_.pool->bytes_max()));
  }
  RoomMaker::Wanted wanted;
  wanted.hash = options_.hash(key);
  wanted.generation = generation_.fetch_add(1, std::memory_order_relaxed) + 1;
  wanted.value_bytes = value_bytes;
  wanted.slot = slot.value();
  wanted.footprint = footprint;
  EMS_ASSIGN_OR_RETURN(ObjectEntry * entry, room_.Take(wanted));
  LayOut(key, entry);
  return Reservation(shared_from_this(), &objects_, entry, slot_losses);
}

void Arrange(ObjectEntry* entry) {
  const bool paged =
      entry->size_class == kRunClass || SizeClasses::Get().at(entry->size_class).paged;
  const uint64_t table_bytes = TableBytes(entry->value_bytes);
  EMS_CHECK(paged || table_bytes == 0, "a packed value of {} bytes", entry->value_bytes);
  // The key follows the header closely: looking an object up then takes one page of memory.
  std::byte* after = entry->head + kObjectHeaderBytes;
  entry->key_data = after + table_bytes;
  if (!paged) entry->payload = after + PackedKeyBytes(entry->key_bytes);
  entry->piece_sums = table_bytes == 0 ? std::span<uint64_t>(&entry->header()->checksum, 1)
                                       : std::span<uint64_t>(reinterpret_cast<uint64_t*>(after),
                                                             PieceCount(entry->value_bytes));
}

void NamespaceStore::SkipGenerations(uint64_t newest) {
  uint64_t now = generation_.load(std::memory_order_relaxed);
  while (now < newest &&
         !generation_.compare_exchange_weak(now, newest, std::memory_order_relaxed)) {
  }
}

void NamespaceStore::LayOut(std::string_view key, ObjectEntry* entry) {
  entry->key_bytes = static_cast<uint16_t>(key.size());
  entry->checksum = 0;
  ObjectHeader* header = new (entry->head) ObjectHeader;
  Arrange(entry);
  std::memcpy(entry->key_data, key.data(), key.size());

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
  header->table_offset =
      TableBytes(entry->value_bytes) > 0 ? static_cast<uint32_t>(kObjectHeaderBytes) : 0;
  header->payload_offset = static_cast<uint64_t>(entry->payload - entry->head);
}

bool NamespaceStore::MayPublish(const void* given, uint16_t slot) {
  const auto& admission = *static_cast<const Admission*>(given);
  const NamespaceStore& store = *admission.store;
  if (admission.cancelled != nullptr && admission.cancelled->load(std::memory_order_acquire))
    return false;
  if (store.closed()) return false;
  if (admission.until != TimePoint::max() && store.clock().Now() >= admission.until) return false;
  if (admission.kept_for != 0 &&
      !store.options_.moved->MayLand(SlotId(slot), admission.kept_for, store.ref(), admission.hash))
    return false;
  const OwnedSlots& owned = *store.options_.owned;
  const bool is_owned = admission.slot_losses.has_value()
                            ? owned.HasSince(slot, *admission.slot_losses)
                            : owned.Has(slot);
  return is_owned || (admission.copy && store.objects_.copies().Holds(SlotId(slot)));
}

Status NamespaceStore::Publish(Reservation reservation, uint64_t checksum,
                               const PublishOptions& options, bool* stored) {
  EMS_CHECK(reservation, "publishing an empty reservation");
  NamespaceStore& store = *reservation.entry_.get_deleter().store;  // the reservation keeps it
  const Admission admission{&store,
                            options.cancelled,
                            reservation.slot_losses_,
                            reservation.until_,
                            options.kept_for,
                            reservation.hash(),
                            options.copy};
  if (MovedSlots* const moved = store.options_.moved; moved != nullptr && options.kept_for == 0)
    moved->Mark(SlotId(reservation.entry_->slot), store.ref(), reservation.hash());
  return store.PublishEntry(reservation.entry_.release(), checksum, options, admission, stored);
}

Status NamespaceStore::PublishEntry(ObjectEntry* entry, uint64_t checksum,
                                    const PublishOptions& options, const Admission& admission,
                                    bool* stored) {
  *stored = false;
  entry->checksum = checksum;
  entry->settling.store(options.settling, std::memory_order_relaxed);  // linking publishes it
  ObjectHeader* header = entry->header();
  header->checksum = checksum;
  header->header_checksum = HeaderChecksum(*header);
  header->state_generation.store(StateWord(entry->generation, ChunkState::kValid),
                                 std::memory_order_release);
  const Footprint footprint{
      entry->size_class,
      entry->size_class == kRunClass ? static_cast<PageRuns::Page*>(entry->unit)->run_pages : 0, 0};
  const Hash128 hash = entry->hash;
  const uint64_t value_bytes = entry->value_bytes;
  const bool sampled = objects_.sampler().Samples(hash);
  if (sampled) (void)TakeSamples(&objects_);  // a miss, e.g., that this value makes up for
  const bool pin = options.pin != nullptr;
  CopySink* const sink = options.copy ? nullptr : objects_.copies().sink();
  // Once it is linked it may go at any time.
  const SlotId slot(entry->slot);
  const std::string key(sink != nullptr ? entry->key() : std::string_view());
  EMS_CHECK(pin || !options.settling, "nobody could settle what is published");
  const ObjectIndex::Linked linked =
      objects_.index().Link(entry, options.overwrite, pin, &MayPublish, &admission);
  switch (linked.outcome) {
    case ObjectIndex::LinkOutcome::kReplaced:
      objects_.Drop(linked.replaced, kLinked);
      [[fallthrough]];
    case ObjectIndex::LinkOutcome::kInserted:
      *stored = true;
      if (sampled) objects_.sampler().Store(hash, value_bytes);
      if (pin) *options.pin = ObjectPin(Keep(), entry);
      // What others kept takes what is free, and makes nobody go for the next.
      if (options.kept_for == 0) room_.MakeAhead(footprint);
      if (sink != nullptr)
        sink->OnStored(ref(), objects_.copies().replicas(), slot, key, !options.elsewhere);
      return OkStatus();
    case ObjectIndex::LinkOutcome::kDuplicate:
      objects_.Drop(entry, 1);
      return OkStatus();
    case ObjectIndex::LinkOutcome::kExists:
      objects_.Drop(entry, 1);
      return Error(StatusCode::kAlreadyExists, "the key holds another value");
    case ObjectIndex::LinkOutcome::kRefused:
      break;
  }
  objects_.Drop(entry, 1);
  if (clock().Now() >= admission.until)
    return Error(StatusCode::kDeadlineExceeded, "the caller does not wait for it any more");
  return Error(StatusCode::kFailedPrecondition, "slot {} or namespace {} is no longer served here",
               slot.value(), options_.name);
}

bool NamespaceStore::Remove(std::string_view key, std::optional<SlotId> slot) {
  const Hash128 hash = options_.hash(key);
  if (MovedSlots* const moved = options_.moved; moved != nullptr && slot) {
    moved->Mark(*slot, ref(), hash);
  } else if (moved != nullptr) {
    moved->Mark(ref(), hash);
  }
  ObjectEntry* entry = objects_.index().Unlink(hash, key);
  if (entry == nullptr) return false;
  if (objects_.sampler().Samples(hash)) objects_.sampler().Remove(hash);
  objects_.Drop(entry, kLinked);
  return true;
}

Status NamespaceStore::Share() {
  EMS_RETURN_IF_ERROR(
      sharing().Start(options_.ref, options_.pool->boot_id(), !options_.another_tier));
  ShowOpenSlots();
  return OkStatus();
}

bool NamespaceStore::MayBeElsewhere() const {
  if (options_.moved != nullptr && options_.moved->AnyOpen()) return true;
  return objects_.copies().Seeks(options_.clock->Now());
}

// What is open is asked last: of two calls at the same time the later one is right.
void NamespaceStore::ShowOpenSlots() {
  SharedIndex* const shared = sharing().index();
  if (shared == nullptr) return;
  bool open = false;
  do {
    open = MayBeElsewhere();
    objects_.index().SetMissesProve(shared, !open);
  } while (open != MayBeElsewhere());
}

void NamespaceStore::MaintainShared() {
  SharedIndex* shared = sharing().index();
  if (shared == nullptr || closed()) return;
  ShowOpenSlots();
  const uint64_t objects = objects_.index().totals().objects;
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
  for (size_t shard = 0; shard < ObjectIndex::kShards; ++shard)
    objects_.index().MoveShard(shard, shared);
  shared->DropOldTables();
}

uint64_t NamespaceStore::pin_bytes_max() const {
  // Of the whole quota: this server's share may be next to nothing until it owns slots.
  const uint64_t pool = options_.pool->bytes_max();
  const uint64_t quota = quota_total_bytes_.load(std::memory_order_relaxed);
  return std::min(pool, quota == 0 ? pool : quota) / 2;
}

void NamespaceStore::DropLostSlots(const std::bitset<kSlotCount>& keep) {
  Admission admission;
  admission.store = this;
  admission.copy = true;
  objects_.Sweep(&MayPublish, &admission, &keep);
  ShowOpenSlots();
}

ObjectPin NamespaceStore::GetKept(SlotId slot, std::string_view key, Era era) {
  MovedSlots* const moved = options_.moved;
  if (moved == nullptr || !moved->Keeps(slot, era)) return {};
  ObjectEntry* const entry = objects_.kept().Find(options_.hash(key), key);
  if (entry == nullptr) return {};
  ObjectPin pin(Keep(), entry);
  return entry->slot == slot.value() && moved->Keeps(slot, era) ? std::move(pin) : ObjectPin();
}

NamespaceUsage NamespaceStore::Usage() {
  NamespaceUsage usage;
  objects_.AddUsage(&usage);
  usage.objects_max = room_.objects_max();
  usage.quota_total_bytes = quota_total_bytes_.load(std::memory_order_relaxed);
  usage.count_evictions = room_.count_evictions();
  // Without a quota of its own it may have the pool's memory, which others want, too.
  const uint64_t memory = usage.quota_bytes > 0
                              ? std::min(usage.quota_bytes, options_.pool->bytes_max())
                              : usage.value_bytes;
  usage.curve = objects_.sampler().Estimate(memory, options_.clock->Now());
  usage.curve.ref = usage.ref;
  usage.samples_lost = objects_.sampler().lost();
  return usage;
}

}  // namespace ems::server
