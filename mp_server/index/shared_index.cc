#include "mp_server/index/shared_index.h"

#include <algorithm>
#include <bit>
#include <new>
#include <utility>

#include "common/check.h"

namespace ems::server {
namespace {

using shm::IndexBucket;
using shm::IndexEntry;
using shm::kEntriesPerBucket;
using shm::kIndexShards;

constexpr uint64_t kObjectsMin = 1 << 16;  // 1 MiB of table
// Of its entries, in percent, beyond which a larger table is made: two choices of four places each,
// without moving anybody, begin to overflow at about 50.
constexpr uint64_t kLoadMax = 40;
// Below it a shard that overflows is left incomplete.
constexpr uint64_t kLoadMin = 25;

IndexEntry* FindEntry(IndexBucket* buckets, const shm::IndexPlace& place, uint64_t word) {
  for (const uint64_t bucket : {place.first, place.second}) {
    for (IndexEntry& entry : buckets[bucket].entries) {
      if (entry.generation_tag.load(std::memory_order_relaxed) == word) return &entry;
    }
  }
  return nullptr;
}

// The first free place of the emptier bucket; nullptr: both are full.
IndexEntry* FreeEntryOf(IndexBucket* buckets, const shm::IndexPlace& place) {
  IndexEntry* best = nullptr;
  int best_free = 0;
  for (const uint64_t bucket : {place.first, place.second}) {
    int free = 0;
    IndexEntry* first_free = nullptr;
    for (IndexEntry& entry : buckets[bucket].entries) {
      if (entry.generation_tag.load(std::memory_order_relaxed) != 0) continue;
      if (free++ == 0) first_free = &entry;
    }
    if (free > best_free) {
      best = first_free;
      best_free = free;
    }
  }
  return best;
}

}  // namespace

Result<std::unique_ptr<SharedIndex>> SharedIndex::Create(NamespaceRef ns, uint64_t boot_id,
                                                         bool all_objects) {
  EMS_ASSIGN_OR_RETURN(fabric::ShmSegment memory,
                       fabric::ShmSegment::CreatePages(shm::kControlBytes, false));
  auto* control = new (memory.bytes().data()) shm::ControlPage;
  control->namespace_id = ns.id.value();
  control->namespace_generation = ns.generation;
  control->boot_id = boot_id;
  return std::unique_ptr<SharedIndex>(new SharedIndex(std::move(memory), all_objects));
}

void SharedIndex::Publish(uint32_t shard) const {
  const Shard& state = shards_[shard];
  const bool incomplete = state.incomplete || state.elsewhere || !all_objects_;
  control()->shards[shard].store(shm::ShardWord(state.table_id, incomplete),
                                 std::memory_order_release);
}

void SharedIndex::Insert(const ObjectEntry& entry) {
  const uint32_t number = shm::ShardOf(entry.hash);
  Shard& shard = shards_[number];
  if (shard.buckets == nullptr) return;
  IndexEntry* place = FreeEntryOf(shard.buckets, shm::PlaceOf(entry.hash, shard.bucket_count));
  if (place == nullptr) {
    left_out_.fetch_add(1, std::memory_order_relaxed);
    shard.crowded.store(true, std::memory_order_relaxed);
    if (!std::exchange(shard.incomplete, true) && !shard.moving) Publish(number);
    return;
  }
  place->location.store(entry.location, std::memory_order_relaxed);
  place->generation_tag.store(shm::GenerationTag(entry.generation, entry.hash),
                              std::memory_order_release);
  const uint64_t entries = shard.entries.load(std::memory_order_relaxed) + 1;
  shard.entries.store(entries, std::memory_order_relaxed);
  if (entries * 100 > shard.bucket_count * kEntriesPerBucket * kLoadMax)
    shard.crowded.store(true, std::memory_order_relaxed);
}

// The thread that frees the memory passes a seq_cst fence after this, and reads the hazards then.
void SharedIndex::Remove(const ObjectEntry& entry) {
  Shard& shard = shards_[shm::ShardOf(entry.hash)];
  if (shard.buckets == nullptr) return;
  IndexEntry* place = FindEntry(shard.buckets, shm::PlaceOf(entry.hash, shard.bucket_count),
                                shm::GenerationTag(entry.generation, entry.hash));
  if (place == nullptr) return;  // it was left out
  place->generation_tag.store(0, std::memory_order_release);
  const uint64_t entries = shard.entries.load(std::memory_order_relaxed);
  EMS_CHECK(entries > 0, "an entry too many in table {}", shard.table_id);
  shard.entries.store(entries - 1, std::memory_order_relaxed);
}

void SharedIndex::StartShard(uint32_t shard) {
  EMS_CHECK(newest_ != nullptr && shard < kIndexShards, "no table for shard {}", shard);
  Shard& state = shards_[shard];
  state.moving = true;
  state.incomplete = false;
  state.crowded.store(false, std::memory_order_relaxed);
  state.entries.store(0, std::memory_order_relaxed);
  state.table_id = newest_->id;
  state.bucket_count = newest_->buckets_per_shard;
  state.buckets = reinterpret_cast<IndexBucket*>(newest_->memory.bytes().data()) +
                  shard * newest_->buckets_per_shard;
}

void SharedIndex::FinishShard(uint32_t shard) {
  EMS_CHECK(shards_[shard].moving, "shard {} is not being moved", shard);
  shards_[shard].moving = false;
  Publish(shard);
}

void SharedIndex::SetMissesProve(uint32_t shard, bool prove) {
  Shard& state = shards_[shard];
  if (std::exchange(state.elsewhere, !prove) == !prove) return;
  if (state.buckets != nullptr && !state.moving) Publish(shard);
}

// A single crowded shard may be the work of a few chosen keys: the table grows with the objects
// only.
bool SharedIndex::NeedsTable(uint64_t objects) const {
  if (newest_ == nullptr) return true;
  const uint64_t places = kIndexShards * newest_->buckets_per_shard * kEntriesPerBucket;
  return objects * 100 > places * kLoadMin &&
         std::any_of(shards_.begin(), shards_.end(), [](const Shard& shard) {
           return shard.crowded.load(std::memory_order_relaxed);
         });
}

Status SharedIndex::AddTable(uint64_t objects) {
  const uint64_t wanted = std::max(kObjectsMin, 4 * objects);
  uint64_t buckets = std::bit_ceil(wanted / kIndexShards / kEntriesPerBucket);
  if (newest_ != nullptr) buckets = std::max(buckets, 2 * newest_->buckets_per_shard);
  if (buckets > shm::kBucketsPerShardMax) {
    return Error(StatusCode::kResourceExhausted, "{} objects are more than a shared index holds",
                 objects);
  }
  auto table = std::make_unique<Table>();
  EMS_ASSIGN_OR_RETURN(table->memory,
                       fabric::ShmSegment::CreatePages(shm::TableBytesOf(buckets), false));
  table->id = next_table_id_++;
  table->buckets_per_shard = buckets;
  newest_ = table.get();
  auto tables = tables_.Lock();
  tables->push_back(std::move(table));
  return OkStatus();
}

void SharedIndex::DropOldTables() {
  std::vector<std::unique_ptr<Table>> old;  // unmapped outside the lock
  auto tables = tables_.Lock();
  for (auto& table : *tables) {
    if (table.get() != newest_) old.push_back(std::move(table));
  }
  std::erase(*tables, nullptr);
  tables.Unlock();
}

void SharedIndex::SetCurrent(ViewVersion view, TimePoint readable_until) {
  control()->view.store(view.packed(), std::memory_order_release);
  control()->readable_until_ns.store(readable_until.time_since_epoch().count(),
                                     std::memory_order_release);
}

void SharedIndex::SetClosed() { control()->closed.store(1, std::memory_order_release); }

void SharedIndex::Shut() {
  SetClosed();
  for (std::atomic<uint64_t>& word : control()->shards)
    word.store(shm::ShardWord(0, true), std::memory_order_release);
}

void SharedIndex::SetSampleBelow(uint64_t below) {
  std::atomic<uint64_t>& word = control()->sample_below;
  if (word.load(std::memory_order_relaxed) != below) word.store(below, std::memory_order_relaxed);
}

Result<SharedIndex::Opened> SharedIndex::OpenControl() const {
  Opened opened;
  EMS_ASSIGN_OR_RETURN(opened.fd, control_memory_.OpenReadOnly());
  opened.bytes = control_memory_.size_bytes();
  return opened;
}

Result<SharedIndex::Opened> SharedIndex::OpenTable(uint64_t table_id) {
  auto tables = tables_.Lock();
  for (const auto& table : *tables) {
    if (table->id != table_id) continue;
    Opened opened;
    EMS_ASSIGN_OR_RETURN(opened.fd, table->memory.OpenReadOnly());
    opened.bytes = table->memory.size_bytes();
    return opened;
  }
  return Error(StatusCode::kNotFound, "no table {}", table_id);
}

bool SharedIndex::HasTable(uint64_t table_id) {
  auto tables = tables_.Lock();
  return std::any_of(tables->begin(), tables->end(),
                     [&](const auto& table) { return table->id == table_id; });
}

uint64_t SharedIndex::table_bytes() {
  auto tables = tables_.Lock();
  uint64_t bytes = 0;
  for (const auto& table : *tables) bytes += table->memory.size_bytes();
  return bytes;
}

}  // namespace ems::server
