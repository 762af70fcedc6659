#include "mp_server/ssd/ssd_index.h"

#include <algorithm>
#include <optional>
#include <unordered_map>

#include "common/check.h"

namespace ems::ssd {
namespace {

struct NameHash {
  size_t operator()(const ObjectName& name) const noexcept {
    return name.hash.lo ^ (uint64_t{name.ns.id.value()} * 0x9e3779b97f4a7c15);
  }
};

}  // namespace

struct SsdIndex::ShardState {
  std::unordered_map<ObjectName, Row, NameHash> stored;  // `reserved` counts hits
  struct Pending {
    uint64_t sequence = 0;
    uint16_t slot = 0;
    bool held = false;  // no row of it can be in the durable index
  };
  std::unordered_map<ObjectName, Pending, NameHash> pending;
  std::unordered_map<ObjectName, uint64_t, NameHash> owed;  // → since
  uint64_t owings = 0;
  Totals totals;

  void Owe(const ObjectName& name) { owed[name] = ++owings; }
  OwedDelete OwedTo(const ObjectName& name) const {
    const auto it = owed.find(name);
    return {name, it == owed.end() ? 0 : it->second};
  }
  // What is stored under the name, if it lies in this use of a region.
  Row* InRegion(const ObjectName& name, uint64_t region_sequence) {
    const auto it = stored.find(name);
    const bool there = it != stored.end() && it->second.region_sequence == region_sequence;
    return there ? &it->second : nullptr;
  }
  void Count(const Row& row) {
    ++totals.objects;
    totals.value_bytes += row.value_bytes;
  }
  void Uncount(const Row& row) {
    EMS_CHECK(totals.objects > 0 && totals.value_bytes >= row.value_bytes,
              "an object of {} bytes goes that was not there", row.value_bytes);
    --totals.objects;
    totals.value_bytes -= row.value_bytes;
  }
};

struct SsdIndex::Shard {
  Guarded<ShardState> state;
};

bool SsdIndex::Erase(ShardState& state, const ObjectName& name) {
  const auto it = state.stored.find(name);
  if (it == state.stored.end()) return false;
  state.Uncount(it->second);
  state.stored.erase(it);
  objects_.fetch_sub(1, std::memory_order_relaxed);
  Tell(name, false);
  return true;
}

// Under the shard's lock, so that it is told in order.
void SsdIndex::Tell(const ObjectName& name, bool stored) {
  StoredObserver* observer = observer_.load(std::memory_order_acquire);
  if (observer == nullptr) return;
  stored ? observer->OnStored(name) : observer->OnDropped(name);
}

SsdIndex::SsdIndex() : shards_(std::make_unique<std::array<Shard, kShards>>()) {}
SsdIndex::~SsdIndex() = default;

SsdIndex::Shard& SsdIndex::ShardOf(const ObjectName& name) {
  return (*shards_)[name.hash.hi >> 60];
}

SsdIndex::Found SsdIndex::Find(const ObjectName& name, bool hit) {
  auto state = ShardOf(name).state.Lock();
  Found found;
  found.pending = state->pending.contains(name);
  const auto it = state->stored.find(name);
  if (it == state->stored.end()) return found;
  if (hit && it->second.reserved < UINT16_MAX) ++it->second.reserved;
  found.stored = true;
  found.row = it->second;
  return found;
}

SsdIndex::Begun SsdIndex::BeginWrite(const ObjectName& name, std::atomic<uint64_t>* next_sequence,
                                     const DirtyObject& object, bool may_hold) {
  auto state = ShardOf(name).state.Lock();
  if (!object.current()) return {};
  const auto before = state->pending.find(name);
  const bool pending = before != state->pending.end();
  if (Erase(*state, name) || (pending && !before->second.held)) state->Owe(name);
  const OwedDelete owed = state->OwedTo(name);
  const bool held = may_hold && (pending || owed);
  const uint64_t sequence = next_sequence->fetch_add(1, std::memory_order_relaxed);
  state->pending[name] = {sequence, object.slot(), held};
  return {true, held, sequence, owed};
}

void SsdIndex::EndHold(const ObjectName& name, uint64_t sequence) {
  auto state = ShardOf(name).state.Lock();
  const auto it = state->pending.find(name);
  if (it != state->pending.end() && it->second.sequence == sequence) it->second.held = false;
}

bool SsdIndex::Counts(const ObjectName& name, uint64_t sequence) {
  auto state = ShardOf(name).state.Lock();
  const auto it = state->pending.find(name);
  return it != state->pending.end() && it->second.sequence == sequence;
}

bool SsdIndex::Commit(const ObjectName& name, const Row& row) {
  auto state = ShardOf(name).state.Lock();
  const auto it = state->pending.find(name);
  if (it == state->pending.end() || it->second.sequence != row.sequence) return false;
  state->pending.erase(it);
  state->owed.erase(name);
  Erase(*state, name);
  state->stored[name] = row;
  state->Count(row);
  objects_.fetch_add(1, std::memory_order_relaxed);
  Tell(name, true);
  return true;
}

void SsdIndex::AbandonWrite(const ObjectName& name, uint64_t sequence) {
  auto state = ShardOf(name).state.Lock();
  const auto it = state->pending.find(name);
  if (it != state->pending.end() && it->second.sequence == sequence) state->pending.erase(it);
}

OwedDelete SsdIndex::AbandonMove(const ObjectName& name, uint64_t sequence) {
  auto state = ShardOf(name).state.Lock();
  const auto it = state->pending.find(name);
  if (it == state->pending.end() || it->second.sequence != sequence) return {};
  state->pending.erase(it);
  state->Owe(name);
  return state->OwedTo(name);
}

OwedDelete SsdIndex::Drop(const ObjectName& name) {
  auto state = ShardOf(name).state.Lock();
  const auto pending = state->pending.find(name);
  const bool may_have_row = pending != state->pending.end() && !pending->second.held;
  state->pending.erase(name);
  if (Erase(*state, name) || may_have_row) state->Owe(name);
  return state->OwedTo(name);
}

OwedDelete SsdIndex::DropRecord(const ObjectName& name, const Row& row) {
  auto state = ShardOf(name).state.Lock();
  const auto it = state->stored.find(name);
  if (it == state->stored.end() || !SameRecord(it->second, row)) return {};
  Erase(*state, name);
  state->Owe(name);
  return state->OwedTo(name);
}

SsdIndex::Reclaimed SsdIndex::Reclaim(const ObjectName& name, uint64_t region_sequence,
                                      bool may_move) {
  auto state = ShardOf(name).state.Lock();
  const auto it = state->stored.find(name);
  if (it == state->stored.end() || it->second.region_sequence != region_sequence) return {};
  Reclaimed reclaimed{Fate::kDropped, it->second, {}};
  Erase(*state, name);
  if (may_move && reclaimed.row.reserved > 0 && !state->pending.contains(name)) {
    reclaimed.fate = Fate::kPending;
    state->pending[name] = {reclaimed.row.sequence, reclaimed.row.slot, false};
  } else {
    state->Owe(name);
    reclaimed.owed = state->OwedTo(name);
  }
  return reclaimed;
}

std::optional<Row> SsdIndex::Wanted(const ObjectName& name, uint64_t region_sequence) {
  auto state = ShardOf(name).state.Lock();
  const Row* const row = state->InRegion(name, region_sequence);
  if (row == nullptr || row->reserved == 0 || state->pending.contains(name)) return std::nullopt;
  return *row;
}

bool SsdIndex::LiesIn(const ObjectName& name, uint64_t sequence, uint64_t region_sequence) {
  auto state = ShardOf(name).state.Lock();
  const Row* const row = state->InRegion(name, region_sequence);
  return row != nullptr && row->sequence == sequence;
}

bool SsdIndex::Move(const ObjectName& name, const Row& row, uint64_t region_sequence) {
  auto state = ShardOf(name).state.Lock();
  Row* const old = state->InRegion(name, region_sequence);
  if (old == nullptr || old->sequence != row.sequence) return false;
  *old = row;
  return true;
}

OwedDelete SsdIndex::OwedTo(const ObjectName& name) {
  auto state = ShardOf(name).state.Lock();
  return state->OwedTo(name);
}

bool SsdIndex::SomeStored(Cursor* cursor, Stored* some, size_t buckets_max) {
  if (cursor->shard >= kShards) return false;
  auto state = (*shards_)[cursor->shard].state.Lock();
  const auto& stored = state->stored;
  if (cursor->buckets != stored.bucket_count()) *cursor = {cursor->shard, 0, stored.bucket_count()};
  const size_t end = std::min(cursor->buckets, cursor->bucket + buckets_max);
  for (; cursor->bucket < end; ++cursor->bucket)
    some->insert(some->end(), stored.begin(cursor->bucket), stored.end(cursor->bucket));
  if (cursor->bucket >= cursor->buckets) *cursor = {cursor->shard + 1, 0, 0};
  return true;
}

void SsdIndex::Owe(const ObjectName& name) {
  auto state = ShardOf(name).state.Lock();
  state->Owe(name);
}

void SsdIndex::EndOwing(std::span<const OwedDelete> deletes) {
  for (const OwedDelete& one : deletes) {
    auto state = ShardOf(one.name).state.Lock();
    const auto it = state->owed.find(one.name);
    if (it != state->owed.end() && it->second == one.since) state->owed.erase(it);
  }
}

std::vector<OwedDelete> SsdIndex::Owed() {
  std::vector<OwedDelete> all;
  for (Shard& shard : *shards_) {
    auto state = shard.state.Lock();
    for (const auto& [name, since] : state->owed) all.push_back({name, since});
  }
  return all;
}

void SsdIndex::Load(const ObjectName& name, const Row& row) {
  auto state = ShardOf(name).state.Lock();
  const auto [it, fresh] = state->stored.try_emplace(name);
  if (!fresh) {
    if (it->second.sequence >= row.sequence) return;
    state->Uncount(it->second);
  } else {
    objects_.fetch_add(1, std::memory_order_relaxed);
  }
  it->second = row;
  it->second.reserved = 0;
  state->Count(row);
}

void SsdIndex::Reserve(uint64_t objects) {
  for (Shard& shard : *shards_) {
    auto state = shard.state.Lock();
    state->stored.reserve(objects / kShards);
  }
}

void SsdIndex::Clear() {
  for (Shard& shard : *shards_) {
    auto state = shard.state.Lock();
    state->stored.clear();
    state->pending.clear();
    state->owed.clear();
    state->totals = {};
    objects_.store(0, std::memory_order_relaxed);
  }
}

void SsdIndex::DropIf(const std::function<bool(const ObjectName&, const Row&)>& gone,
                      std::vector<OwedDelete>* owed) {
  for (Shard& shard : *shards_) {
    auto state = shard.state.Lock();
    for (auto it = state->stored.begin(); it != state->stored.end();) {
      if (!gone(it->first, it->second)) {
        ++it;
        continue;
      }
      state->Owe(it->first);
      owed->push_back(state->OwedTo(it->first));
      state->Uncount(it->second);
      Tell(it->first, false);
      it = state->stored.erase(it);
      objects_.fetch_sub(1, std::memory_order_relaxed);
    }
    for (auto it = state->pending.begin(); it != state->pending.end();) {
      Row row;
      row.slot = it->second.slot;
      if (!gone(it->first, row)) {
        ++it;
        continue;
      }
      state->Owe(it->first);
      owed->push_back(state->OwedTo(it->first));
      it = state->pending.erase(it);
    }
  }
}

SsdIndex::Totals SsdIndex::totals() const {
  Totals sum;
  for (Shard& shard : *shards_) {
    auto state = shard.state.Lock();
    sum.objects += state->totals.objects;
    sum.value_bytes += state->totals.value_bytes;
  }
  return sum;
}

}  // namespace ems::ssd
