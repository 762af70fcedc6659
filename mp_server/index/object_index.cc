#include "mp_server/index/object_index.h"

#include <algorithm>
#include <bit>
#include <new>

#include "common/check.h"
#include "mp_server/index/shared_index.h"
#include "mp_server/index/version_heat.h"

namespace ems::server {
namespace {

constexpr size_t kBucketsMin = 16;
constexpr size_t kSweepBuckets = 256;
constexpr int kShardTries = 64;
constexpr int kJoinTries = 4;

ObjectEntry* EntryOf(EvictionHook* hook) { return static_cast<ObjectEntry*>(hook); }

// What looking it up reads and touching it writes: its first two cache lines.
void PrefetchEntry(const ObjectEntry* entry) {
  if (entry == nullptr) return;
  __builtin_prefetch(entry, 1);
  __builtin_prefetch(reinterpret_cast<const std::byte*>(entry) + 64);
}

}  // namespace

size_t ObjectIndex::Table::BucketOf(Hash128 hash) const {
  const size_t mask = std::bit_floor(buckets.size()) * 2 - 1;
  const size_t bucket = hash.lo & mask;
  return bucket < buckets.size() ? bucket : bucket & (mask >> 1);
}

ObjectEntry* ObjectIndex::Table::Find(Hash128 hash, std::string_view key) const {
  for (ObjectEntry* entry = buckets[BucketOf(hash)]; entry != nullptr; entry = entry->next) {
    if (entry->hash == hash && entry->key() == key) return entry;
  }
  return nullptr;
}

void ObjectIndex::Table::Insert(ObjectEntry* entry) {
  ObjectEntry*& bucket = buckets[BucketOf(entry->hash)];
  entry->next = bucket;
  bucket = entry;
  ++objects;
  value_bytes += entry->value_bytes;
  if (objects > buckets.size()) Grow();
}

void ObjectIndex::Table::Remove(ObjectEntry* entry) {
  ObjectEntry** at = &buckets[BucketOf(entry->hash)];
  while (*at != entry) {
    EMS_CHECK(*at != nullptr, "a linked object is not in its bucket");
    at = &(*at)->next;
  }
  *at = entry->next;
  entry->next = nullptr;
  --objects;
  value_bytes -= entry->value_bytes;
}

// Splits one bucket: its objects with the next bit of the hash move to the new last bucket.
void ObjectIndex::Table::Grow() {
  try {
    buckets.push_back(nullptr);
  } catch (const std::bad_alloc&) {
    return;  // longer chains until there is memory again
  }
  const size_t added = buckets.size() - 1;
  const size_t split = added - std::bit_floor(added);
  ObjectEntry* entry = buckets[split];
  buckets[split] = nullptr;
  while (entry != nullptr) {
    ObjectEntry* next = entry->next;
    ObjectEntry*& bucket = buckets[BucketOf(entry->hash)];
    entry->next = bucket;
    bucket = entry;
    entry = next;
  }
}

ObjectIndex::ObjectIndex(const Clock* clock, const EvictionPolicyFactory& policy,
                         kv_events::BlockEvents* events)
    : clock_(clock), events_(events) {
  for (Shard& shard : shards_) {
    auto table = shard.table.Lock();
    table->buckets.resize(kBucketsMin);
    table->policy = policy();
  }
}

void ObjectIndex::PublishColdest(Shard& shard, const Table& table) {
  shard.coldest_ns.store(table.policy->ColdestNs(), std::memory_order_relaxed);
}

// Takes the object out of table and order; the index's hold is now the caller's to drop.
ObjectEntry* ObjectIndex::Detach(Shard& shard, Table& table, ObjectEntry* entry) {
  EMS_CHECK((entry->holds.load(std::memory_order_relaxed) & kLinked) != 0,
            "unlinking an object with holds {:#x}", entry->holds.load(std::memory_order_relaxed));
  if (table.mirror != nullptr) table.mirror->Remove(*entry);
  table.Remove(entry);
  table.policy->OnRemove(entry);
  PublishColdest(shard, table);
  Tell(entry->hash, false);
  return entry;
}

// Under the shard's lock, so that events of one object come in their order.
void ObjectIndex::Tell(Hash128 hash, bool stored) const {
  if (events_ != nullptr) events_->Push({hash, kv_events::Medium::kDram, stored});
}

ObjectIndex::Found ObjectIndex::Find(Hash128 hash, std::string_view key, bool touch, bool pin,
                                     TimePoint now) {
  Shard& shard = shards_[ShardOf(hash)];
  auto table = shard.table.Lock();
  ObjectEntry* entry = table->Find(hash, key);
  if (entry == nullptr) return {};
  if (touch) {
    table->policy->OnTouch(entry, now == TimePoint() ? NowNs() : now.time_since_epoch().count());
    PublishColdest(shard, *table);
  }
  if (pin && entry->holds.fetch_add(1, std::memory_order_acq_rel) == kLinked)
    shard.pinned.fetch_add(1, std::memory_order_relaxed);
  return {entry, entry->value_bytes, entry->checksum};
}

bool ObjectIndex::Drop(ObjectEntry* entry, uint32_t holds) {
  const uint32_t before = entry->holds.fetch_sub(holds, std::memory_order_acq_rel);
  EMS_CHECK(
      (before & ~kLinked) >= (holds & ~kLinked) && (before & holds & kLinked) == (holds & kLinked),
      "dropping {:#x} of holds {:#x}", holds, before);
  return before == holds;
}

bool ObjectIndex::Unpin(ObjectEntry* entry) {
  // The count first: after the drop the entry may be another object's.
  Shard& shard = shards_[ShardOf(entry->hash)];
  const uint32_t before = entry->holds.fetch_sub(1, std::memory_order_acq_rel);
  EMS_CHECK((before & ~kLinked) > 0, "unpinning an object that is not pinned");
  if ((before & ~kLinked) == 1) shard.pinned.fetch_sub(1, std::memory_order_relaxed);
  return before == 1;
}

void ObjectIndex::TurnIntoPin(ObjectEntry* entry) {
  const uint32_t before = entry->holds.fetch_sub(kLinked - 1, std::memory_order_acq_rel);
  EMS_CHECK((before & kLinked) != 0, "an object with holds {:#x} is in no index", before);
  if (before == kLinked)
    shards_[ShardOf(entry->hash)].pinned.fetch_add(1, std::memory_order_relaxed);
}

ObjectIndex::Linked ObjectIndex::Link(ObjectEntry* entry, bool overwrite, bool pin, Admit admit,
                                      const void* context) {
  Shard& shard = shards_[ShardOf(entry->hash)];
  auto table = shard.table.Lock();
  if (!admit(context, entry->slot)) return {LinkOutcome::kRefused, nullptr};
  const int64_t now = NowNs();
  ObjectEntry* old = table->Find(entry->hash, entry->key());
  if (old != nullptr) {
    const bool same = old->value_bytes == entry->value_bytes && old->checksum == entry->checksum;
    if (same || !overwrite) {
      if (same) table->policy->OnTouch(old, now);
      PublishColdest(shard, *table);
      return {same ? LinkOutcome::kDuplicate : LinkOutcome::kExists, nullptr};
    }
  }
  // The new one first: who reads without a lock finds one of them at every moment.
  if (table->mirror != nullptr) table->mirror->Insert(*entry);
  if (old != nullptr) Detach(shard, *table, old);
  entry->linked_ns = now;
  table->Insert(entry);
  Tell(entry->hash, true);
  table->policy->OnInsert(entry, now);
  PublishColdest(shard, *table);
  if (pin) shard.pinned.fetch_add(1, std::memory_order_relaxed);
  const uint32_t turned = pin ? kLinked : kLinked - 1;  // the caller's hold, or the index's alone
  const uint32_t before = entry->holds.fetch_add(turned, std::memory_order_acq_rel);
  EMS_CHECK(before == 1, "publishing an object with holds {:#x}", before);
  return {old != nullptr ? LinkOutcome::kReplaced : LinkOutcome::kInserted, old};
}

bool ObjectIndex::Adopt(ObjectEntry* entry, int64_t touched_ns) {
  Shard& shard = shards_[ShardOf(entry->hash)];
  auto table = shard.table.Lock();
  if (table->Find(entry->hash, entry->key()) != nullptr) return false;
  if (table->mirror != nullptr) table->mirror->Insert(*entry);
  table->Insert(entry);
  Tell(entry->hash, true);
  table->policy->OnInsert(entry, touched_ns);
  PublishColdest(shard, *table);
  const uint32_t before = entry->holds.exchange(kLinked, std::memory_order_acq_rel);
  EMS_CHECK(before == 1, "adopting an object with holds {:#x}", before);
  return true;
}

void ObjectIndex::Visit(const std::function<void(const ObjectEntry&)>& visit) {
  for (Shard& shard : shards_) {
    auto table = shard.table.Lock();
    for (const ObjectEntry* entry : table->buckets)
      for (; entry != nullptr; entry = entry->next) visit(*entry);
  }
}

ObjectEntry* ObjectIndex::Unlink(Hash128 hash, std::string_view key) {
  Shard& shard = shards_[ShardOf(hash)];
  auto table = shard.table.Lock();
  ObjectEntry* entry = table->Find(hash, key);
  return entry == nullptr ? nullptr : Detach(shard, *table, entry);
}

// By walking the bucket: whatever the victim's memory is now, an entry found there is linked, so
// its fields may be read.
ObjectEntry* ObjectIndex::Unlink(const Victim& victim, bool* unwritten) {
  Shard& shard = shards_[ShardOf(victim.hash)];
  auto table = shard.table.Lock();
  ObjectEntry* entry = table->buckets[table->BucketOf(victim.hash)];
  while (entry != nullptr && entry != victim.entry) entry = entry->next;
  if (entry == nullptr || entry->generation != victim.generation) return nullptr;
  if (entry->settling.load(std::memory_order_acquire)) return nullptr;
  if (unwritten != nullptr && entry->unwritten.load(std::memory_order_relaxed) > 0) {
    *unwritten = true;
    return nullptr;
  }
  return Detach(shard, *table, entry);
}

// The shard with the coldest object, and how cold that of the second coldest is.
size_t ObjectIndex::ColdestShard(int64_t* bound_ns) const {
  size_t best = 0;
  int64_t first = kNever, second = kNever;
  for (size_t i = 0; i < kShards; ++i) {
    const int64_t ns = shards_[i].coldest_ns.load(std::memory_order_relaxed);
    if (ns < first) {
      second = first;
      first = ns;
      best = i;
    } else if (ns < second) {
      second = ns;
    }
  }
  *bound_ns = second;
  return first == kNever ? kShards : best;
}

ObjectIndex::Taken ObjectIndex::TakeColdest(int size_class, int* skips_left) {
  for (int tries = kShardTries; tries > 0;) {
    int64_t bound_ns = kNever;
    const size_t best = ColdestShard(&bound_ns);
    if (best == kShards) return {};
    Shard& shard = shards_[best];
    auto table = shard.table.Lock();
    EvictionHook* coldest = table->policy->Coldest();
    if (coldest == nullptr || table->policy->ColdestNs() > bound_ns) {
      // Another thread has changed it meanwhile, or its version was used, which other shards have
      // seen.
      --tries;
      PublishColdest(shard, *table);
      continue;
    }
    ObjectEntry* entry = EntryOf(coldest);
    if (!entry->evictable()) {
      if (--*skips_left < 0) return {};
      table->policy->OnHeld(entry, NowNs());
      PublishColdest(shard, *table);
      continue;
    }
    if (size_class != kAnyClass && entry->size_class != size_class)
      return {TakeOutcome::kOtherClass, nullptr};
    return {TakeOutcome::kTaken, Detach(shard, *table, entry)};
  }
  return {};
}

int64_t ObjectIndex::ColdestTouch() const {
  int64_t second_ns = 0;
  const size_t shard = ColdestShard(&second_ns);
  return shard == kShards ? kNever : shards_[shard].coldest_ns.load(std::memory_order_relaxed);
}

bool ObjectIndex::Sweep(Admit admit, const void* context, SweepCursor* cursor,
                        std::vector<ObjectEntry*>* out) {
  if (cursor->shard == kShards) return false;
  Shard& shard = shards_[cursor->shard];
  auto table = shard.table.Lock();
  // Splits move objects to higher buckets only, so going upwards meets each of them.
  const size_t end = std::min(table->buckets.size(), cursor->bucket + kSweepBuckets);
  for (; cursor->bucket < end; ++cursor->bucket) {
    ObjectEntry* entry = table->buckets[cursor->bucket];
    while (entry != nullptr) {
      ObjectEntry* next = entry->next;
      if (admit == nullptr || !admit(context, entry->slot))
        out->push_back(Detach(shard, *table, entry));
      entry = next;
    }
  }
  if (cursor->bucket == table->buckets.size()) *cursor = {cursor->shard + 1, 0};
  return true;
}

bool ObjectIndex::SomeHashes(SweepCursor* cursor, std::vector<Hash128>* hashes) {
  if (cursor->shard == kShards) return false;
  auto table = shards_[cursor->shard].table.Lock();
  const size_t end = std::min(table->buckets.size(), cursor->bucket + kSweepBuckets);
  for (; cursor->bucket < end; ++cursor->bucket) {
    for (const ObjectEntry* entry = table->buckets[cursor->bucket]; entry != nullptr;
         entry = entry->next)
      hashes->push_back(entry->hash);
  }
  if (cursor->bucket == table->buckets.size()) *cursor = {cursor->shard + 1, 0};
  return true;
}

bool ObjectIndex::SomeKeys(std::string_view prefix, size_t most, SweepCursor* cursor,
                           std::vector<Listed>* keys) {
  if (cursor->shard >= kShards) return false;
  auto table = shards_[cursor->shard].table.Lock();
  // As in Sweep, going upwards meets each object however the table grows.
  const size_t end = std::min(table->buckets.size(), cursor->bucket + kSweepBuckets);
  const size_t enough = keys->size() + most;
  for (; cursor->bucket < end && keys->size() < enough; ++cursor->bucket) {
    for (const ObjectEntry* entry = table->buckets[cursor->bucket]; entry != nullptr;
         entry = entry->next) {
      if (!entry->key().starts_with(prefix)) continue;
      keys->push_back({std::string(entry->key()), entry->value_bytes, entry->slot, entry->linked_ns,
                       entry->touched_ns.load(std::memory_order_relaxed)});
    }
  }
  if (cursor->bucket >= table->buckets.size()) *cursor = {cursor->shard + 1, 0};
  return true;
}

bool ObjectIndex::HasBefore(Hash128 hash, int64_t linked_ns) {
  auto table = shards_[ShardOf(hash)].table.Lock();
  const ObjectEntry* entry = table->buckets[table->BucketOf(hash)];
  while (entry != nullptr && (entry->hash != hash || entry->linked_ns >= linked_ns))
    entry = entry->next;
  return entry != nullptr;
}

template <typename Look>
void ObjectIndex::ByShard(std::span<const Hash128> hashes, Look look) {
  EMS_CHECK(hashes.size() <= kTouchesMax, "{} hashes in one call", hashes.size());
  // By shard, in their order; 16 bits an index keep it on the stack.
  std::array<uint16_t, kTouchesMax> order;
  std::array<size_t, kShards + 1> begin{};
  for (const Hash128& hash : hashes) ++begin[ShardOf(hash) + 1];
  for (size_t shard = 0; shard < kShards; ++shard) begin[shard + 1] += begin[shard];
  std::array<size_t, kShards> next;
  std::copy_n(begin.begin(), kShards, next.begin());
  for (size_t i = 0; i < hashes.size(); ++i)
    order[next[ShardOf(hashes[i])]++] = static_cast<uint16_t>(i);
  for (size_t shard = 0; shard < kShards; ++shard) {
    for (size_t at = begin[shard]; at < begin[shard + 1]; at += kWindow) {
      const size_t end = std::min(at + kWindow, begin[shard + 1]);
      auto table = shards_[shard].table.Lock();
      look(*table, std::span<const uint16_t>(order).subspan(at, end - at));
      PublishColdest(shards_[shard], *table);
    }
  }
}

// The cache misses of a window overlap: buckets, then entries, then what they point to.
ObjectIndex::Window ObjectIndex::Gather(const Table& table, std::span<const Hash128> hashes,
                                        std::span<const uint16_t> which, bool keys, bool order) {
  std::array<ObjectEntry* const*, kWindow> buckets;
  for (size_t n = 0; n < which.size(); ++n) {
    buckets[n] = &table.buckets[table.BucketOf(hashes[which[n]])];
    __builtin_prefetch(buckets[n]);
  }
  for (size_t n = 0; n < which.size(); ++n) PrefetchEntry(*buckets[n]);
  Window found{};
  for (size_t n = 0; n < which.size(); ++n) {
    ObjectEntry* entry = *buckets[n];
    while (entry != nullptr && entry->hash != hashes[which[n]]) entry = entry->next;
    found[n] = entry;
    if (entry == nullptr) continue;
    if (keys) __builtin_prefetch(entry->key_data);
    if (!order) continue;
    __builtin_prefetch(entry->colder, 1);
    __builtin_prefetch(entry->warmer, 1);
  }
  return found;
}

void ObjectIndex::FindMany(std::span<const Hash128> hashes, std::span<const std::string_view> keys,
                           bool touch, TimePoint now, std::span<Found> found) {
  EMS_CHECK(keys.size() <= kFindMax && keys.size() == hashes.size() && found.size() == keys.size(),
            "{} keys, {} hashes, {} places", keys.size(), hashes.size(), found.size());
  const int64_t used_ns = now == TimePoint() ? NowNs() : now.time_since_epoch().count();
  ByShard(hashes, [&](Table& table, std::span<const uint16_t> which) {
    const Window window = Gather(table, hashes, which, true, touch);
    for (size_t n = 0; n < which.size(); ++n) {
      const uint16_t i = which[n];
      ObjectEntry* entry = window[n];
      while (entry != nullptr && (entry->hash != hashes[i] || entry->key() != keys[i]))
        entry = entry->next;
      found[i] = {};
      if (entry == nullptr) continue;
      if (touch) table.policy->OnTouch(entry, used_ns);
      found[i] = {entry, entry->value_bytes, entry->checksum};
    }
  });
}

void ObjectIndex::Touch(std::span<const Hash128> hashes) {
  ByShard(hashes, [&](Table& table, std::span<const uint16_t> which) {
    const Window window = Gather(table, hashes, which, false, true);
    const int64_t now = NowNs();
    for (size_t n = 0; n < which.size(); ++n) {
      if (window[n] != nullptr) table.policy->OnTouch(window[n], now);
    }
  });
}

std::optional<uint64_t> ObjectIndex::BytesOf(Hash128 hash) {
  auto table = shards_[ShardOf(hash)].table.Lock();
  for (const ObjectEntry* entry = table->buckets[table->BucketOf(hash)]; entry != nullptr;
       entry = entry->next) {
    if (entry->hash == hash) return entry->value_bytes;
  }
  return std::nullopt;
}

void ObjectIndex::JoinVersion(Hash128 hash, std::string_view key, uint32_t version,
                              VersionHeat* heat) {
  Shard& shard = shards_[ShardOf(hash)];
  // Which group it is then is asked without the shard's lock: nobody is likely to change it
  // meanwhile.
  for (int tries = kJoinTries; tries > 0; --tries) {
    uint32_t before = 0;
    {
      auto table = shard.table.Lock();
      const ObjectEntry* entry = table->Find(hash, key);
      if (entry == nullptr) return;
      before = entry->group;
    }
    const uint32_t group = heat->Joined(before, version);
    if (group == before) return;
    auto table = shard.table.Lock();
    ObjectEntry* entry = table->Find(hash, key);
    if (entry == nullptr) return;
    if (entry->group != before) continue;
    table->policy->OnGroup(entry, group);
    PublishColdest(shard, *table);
    return;
  }
}

void ObjectIndex::PublishAllColdest() {
  for (Shard& shard : shards_) {
    auto table = shard.table.Lock();
    PublishColdest(shard, *table);
  }
}

void ObjectIndex::MoveShard(size_t shard, SharedIndex* mirror) {
  auto table = shards_[shard].table.Lock();
  table->mirror = mirror;
  mirror->StartShard(static_cast<uint32_t>(shard));
  for (const ObjectEntry* bucket : table->buckets) {
    for (const ObjectEntry* entry = bucket; entry != nullptr; entry = entry->next)
      mirror->Insert(*entry);
  }
  mirror->FinishShard(static_cast<uint32_t>(shard));
}

void ObjectIndex::SetMissesProve(SharedIndex* shared, bool prove) {
  for (size_t shard = 0; shard < kShards; ++shard) {
    auto table = shards_[shard].table.Lock();
    shared->SetMissesProve(static_cast<uint32_t>(shard), prove);
  }
}

ObjectIndex::Totals ObjectIndex::totals() {
  Totals sum;
  for (Shard& shard : shards_) {
    auto table = shard.table.Lock();
    sum.objects += table->objects;
    sum.value_bytes += table->value_bytes;
  }
  return sum;
}

uint64_t ObjectIndex::pinned_objects() const {
  int64_t sum = 0;
  for (const Shard& shard : shards_) sum += shard.pinned.load(std::memory_order_relaxed);
  return static_cast<uint64_t>(std::max<int64_t>(0, sum));
}

}  // namespace ems::server
