#include "mp_server/hot/read_sketch.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <tuple>

#include "common/check.h"

namespace ems::server {
namespace {

uint64_t NextId() {
  static std::atomic<uint64_t> next{0};
  return next.fetch_add(1, std::memory_order_relaxed) + 1;
}

}  // namespace

ReadSketch::ReadSketch() : id_(NextId()) {}

ReadSketch::Table* ReadSketch::Mine() {
  struct Known {
    uint64_t sketch = 0;  // whose
    void* table = nullptr;
  };
  static thread_local Known known;
  if (known.sketch != id_) [[unlikely]]
    known = {id_, MakeMine()};
  return static_cast<Table*>(known.table);
}

ReadSketch::Table* ReadSketch::MakeMine() {
  const size_t place = used_.fetch_add(1, std::memory_order_relaxed);
  if (place >= kThreadsMax) return nullptr;
  auto table = std::make_unique<Table>();
  table->random = (id_ << 32 | (place + 1)) * 0x9e3779b97f4a7c15;
  table->period = period_.load(std::memory_order_acquire);
  owned_[place] = std::move(table);
  tables_[place].store(owned_[place].get(), std::memory_order_release);
  return owned_[place].get();
}

ReadSketch::Entry* ReadSketch::Half::PlaceOf(const ReadKey& read) {
  const auto known = std::span(hashes).first(used);
  for (size_t i = 0; i < used; ++i) {
    if (known[i] == read.hash && entries[i].ns == read.ns) return &entries[i];
  }
  Entry* entry = nullptr;
  if (used < kKeys) {
    entry = &entries[used++];
    entry->reads = entry->error = 0;
  } else {
    entry = &*std::ranges::min_element(entries, {}, &Entry::reads);
    entry->error = entry->reads;
  }
  hashes[static_cast<size_t>(entry - entries.data())] = read.hash;
  entry->ns = read.ns;
  entry->slot = read.slot;
  entry->bytes = 0;
  entry->key_bytes = static_cast<uint16_t>(read.key.size());
  std::memcpy(entry->key.data(), read.key.data(), read.key.size());
  return entry;
}

void ReadSketch::Count(const ReadKey& read, uint64_t value_bytes) {
  Table* const table = Mine();
  if (table == nullptr || read.key.size() > kKeyBytesMax) return;
  const uint64_t period = period_.load(std::memory_order_acquire);
  if (period != table->period) {
    table->ended.store(table->period * 2 + table->active, std::memory_order_release);
    table->active ^= 1;
    table->halves[table->active].used = 0;
    table->period = period;
  }
  const uint64_t weight = value_bytes >= kCountedBytes ? 1 : kSampleEvery;
  Entry* const entry = table->halves[table->active].PlaceOf(read);
  entry->reads += weight;
  entry->bytes += weight * value_bytes;
}

std::vector<ReadCount> ReadSketch::Take() {
  std::map<std::tuple<uint32_t, uint32_t, Hash128>, ReadCount> merged;
  const uint64_t period = period_.load(std::memory_order_relaxed);
  for (const auto& place : tables_) {
    const Table* const table = place.load(std::memory_order_acquire);
    if (table == nullptr) continue;
    const uint64_t ended = table->ended.load(std::memory_order_acquire);
    if (ended / 2 != period - 1) continue;
    const Half& half = table->halves[ended % 2];
    EMS_CHECK(half.used <= kKeys, "{} keys in a table", half.used);
    for (size_t i = 0; i < half.used; ++i) {
      const Entry& entry = half.entries[i];
      ReadCount& count = merged[{entry.ns.id.value(), entry.ns.generation, half.hashes[i]}];
      if (count.key.empty()) {
        count.ns = entry.ns;
        count.slot = entry.slot;
        count.key.assign(entry.key.data(), entry.key_bytes);
        count.hash = half.hashes[i];
      }
      count.reads += entry.reads - entry.error;
      count.bytes += entry.bytes;
    }
  }
  period_.store(period + 1, std::memory_order_release);
  std::vector<ReadCount> counts;
  counts.reserve(merged.size());
  for (auto& [name, count] : merged) counts.push_back(std::move(count));
  return counts;
}

}  // namespace ems::server
