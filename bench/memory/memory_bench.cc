#include "bench/memory/memory_bench.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <bitset>
#include <cmath>
#include <random>
#include <set>
#include <utility>

#include "bench/harness/byte_lru.h"
#include "bench/harness/figures.h"
#include "common/guarded.h"
#include "common/thread_pool.h"
#include "mp_server/store/evictor.h"
#include "mp_server/store/object_store.h"

namespace ems::bench {
namespace {

using server::NamespaceUsage;
using server::ObjectStore;
using server::SegmentPool;

constexpr uint64_t kCatalogPools = 4;
constexpr size_t kCatalogMax = size_t{1} << 22;
constexpr Duration kReadyTimeout = std::chrono::seconds(120);
constexpr Duration kGrowTimeout = std::chrono::seconds(20);
constexpr Duration kRetryAfter = std::chrono::microseconds(200);
constexpr uint64_t kProgressEvery = 1024;
constexpr SlotId kSlot(0);

TimePoint Now() { return Clock::System().Now(); }

// The memfds of the pool by the address at which each is mapped. Threading: thread-safe.
class FileLog final {
 public:
  Result<fabric::ShmSegment> Create(uint64_t bytes, fabric::HugePages huge_pages) {
    Result<fabric::ShmSegment> made = fabric::ShmSegment::Create(bytes, huge_pages);
    if (!made.ok()) return made;
    struct stat info {};
    if (::fstat(made->fd(), &info) != 0) return Error(StatusCode::kInternal, "fstat of a segment");
    auto files = files_.Lock();
    files->push_back({made->bytes().data(), made->size_bytes(), info.st_ino});
    return made;
  }
  // The newest file at an address: an older one there has been unmapped.
  ino_t FileAt(const std::byte* address) {
    auto files = files_.Lock();
    const auto at = std::find_if(files->rbegin(), files->rend(), [&](const File& file) {
      return address >= file.data && address < file.data + file.bytes;
    });
    return at == files->rend() ? 0 : at->inode;
  }

 private:
  struct File {
    const std::byte* data = nullptr;
    uint64_t bytes = 0;
    ino_t inode = 0;
  };
  Guarded<std::vector<File>> files_;
};

// Pool, store and background eviction as in mp-server, with namespaces 1 … n.
class Memory final {
 public:
  static Result<std::unique_ptr<Memory>> Make(const MemorySettings& settings, uint64_t namespaces) {
    auto memory = std::make_unique<Memory>(settings);
    NamespaceTable table;
    for (uint64_t i = 1; i <= namespaces; ++i) {
      NamespaceInfo info;
      info.ref = RefOf(i);
      info.name = fmt::format("tenant-{}", i);
      table.by_id[info.ref.id] = info;
    }
    memory->store_.SetNamespaces(table, 1.0);
    memory->store_.SetOwnedSlots(std::bitset<kSlotCount>().set());
    EMS_RETURN_IF_ERROR(
        memory->pool_.WaitReady(settings.pool_bytes, Deadline::After(kReadyTimeout)));
    return memory;
  }
  explicit Memory(const MemorySettings& settings)
      : pool_(LoggedOptions(settings, &files_)), store_({.pool = &pool_}), evictor_(&store_) {}

  static NamespaceRef RefOf(uint64_t tenant) {
    return {NamespaceId(static_cast<uint32_t>(tenant)), 1};
  }
  ObjectStore& store() { return store_; }
  FileLog& files() { return files_; }
  NamespaceUsage UsageOf(uint64_t tenant) {
    for (const NamespaceUsage& usage : store_.Usage())
      if (usage.ref == RefOf(tenant)) return usage;
    return {};
  }

 private:
  static SegmentPool::Options LoggedOptions(const MemorySettings& settings, FileLog* files) {
    SegmentPool::Options options = PoolOptions(settings);
    options.create = [files](uint64_t bytes, fabric::HugePages huge_pages) {
      return files->Create(bytes, huge_pages);
    };
    return options;
  }

  FileLog files_;
  SegmentPool pool_;
  ObjectStore store_;
  server::Evictor evictor_;
};

struct Object {
  std::string key;
  uint64_t bytes = 0;
};

std::vector<Object> MakeCatalog(const MemorySizes& sizes, size_t phase, uint64_t bytes,
                                std::mt19937_64* random) {
  std::vector<Object> catalog;
  std::uniform_real_distribution<double> exponent(std::log(static_cast<double>(sizes.bytes_min)),
                                                  std::log(static_cast<double>(sizes.bytes_max)));
  const bool uniform = sizes.bytes_min == sizes.bytes_max;
  for (uint64_t sum = 0; sum < bytes && catalog.size() < kCatalogMax;) {
    const uint64_t size =
        uniform ? sizes.bytes_min : static_cast<uint64_t>(std::exp(exponent(*random)));
    // As long as a block's key with its model and hash.
    catalog.push_back({fmt::format("phase-{}/object-{:016}", phase, catalog.size()), size});
    sum += size;
  }
  return catalog;
}

// Stores an object without its bytes. Errors: as Reserve's
Status Insert(ObjectStore& store, NamespaceRef ns, const Object& object, uint64_t checksum,
              LatencyRecorder* reserve, LatencyRecorder* put, const std::byte** where = nullptr) {
  const TimePoint start = Now();
  Result<server::Reservation> room = store.Reserve(ns, kSlot, object.key, object.bytes);
  const TimePoint reserved = Now();
  if (!room.ok()) return room.status();
  if (where != nullptr) *where = room->value().data();
  bool stored = false;
  const TimePoint filled = Now();
  EMS_RETURN_IF_ERROR(store.Publish(std::move(*room), checksum, {}, &stored));
  reserve->Record(reserved - start);
  if (put != nullptr) put->Record((reserved - start) + (Now() - filled));
  return OkStatus();
}

}  // namespace

SegmentPool::Options PoolOptions(const MemorySettings& settings) {
  SegmentPool::Options options;
  options.bytes = settings.pool_bytes;
  options.segment_bytes = settings.segment_bytes;
  options.huge_pages = settings.huge_pages;
  return options;
}

double MemoryResult::evictions_per_insertion() const { return Share(evictions, insertions); }
double MemoryResult::hit_rate(const Hits& of) const { return Share(of.objects, reads.objects); }
double MemoryResult::byte_hit_rate(const Hits& of) const { return Share(of.bytes, reads.bytes); }

Result<MemoryResult> MemoryBench::Run(const MemoryScenario& scenario) {
  EMS_ASSIGN_OR_RETURN(const auto memory, Memory::Make(settings_, 1));
  ObjectStore& store = memory->store();
  const NamespaceRef ns = Memory::RefOf(1);
  std::mt19937_64 random(settings_.seed);
  std::uniform_real_distribution<double> unit(0, 1);
  ByteLru ideal(settings_.pool_bytes);
  MemoryResult result;
  result.name = scenario.name;
  result.efficiency_min = 1;
  uint64_t evicted_before = 0;
  LatencyRecorder filling;
  const uint64_t per_phase = std::max<uint64_t>(1, settings_.insertions / scenario.phases.size());
  const uint64_t sample_every = std::max<uint64_t>(1, settings_.insertions / settings_.samples);
  bool full = false;
  for (size_t phase = 0; phase < scenario.phases.size(); ++phase) {
    const std::vector<Object> catalog =
        MakeCatalog(scenario.phases[phase], phase, kCatalogPools * settings_.pool_bytes, &random);
    for (uint64_t done = 0, tried = 0; done < per_phase;) {
      // The square makes the first quarter of the catalog as popular as the rest together.
      const double at = unit(random);
      const auto id = std::min(catalog.size() - 1,
                               static_cast<size_t>(at * at * static_cast<double>(catalog.size())));
      const Object& object = catalog[id];
      const bool would_hit = ideal.Reference((uint64_t{phase} << 32) + id, object.bytes);
      const bool hit = static_cast<bool>(store.Get(ns, object.key, true));
      if (full) {
        result.reads.Add(object.bytes);
        if (hit) result.hits.Add(object.bytes);
        if (would_hit) result.ideal_hits.Add(object.bytes);
      }
      if (hit) continue;
      const Status stored = Insert(store, ns, object, random(), full ? &result.reserve : &filling,
                                   full ? &result.put : nullptr);
      if (!full) {
        evicted_before = memory->UsageOf(1).evicted_objects;
        full = evicted_before > 0 || !stored.ok();
        continue;
      }
      ++done;
      if (stored.ok()) {
        ++result.insertions;
      } else {
        ++result.refused;
        result.refusal = ToString(stored);
      }
      if (done % sample_every == 0) {
        result.efficiency_end = Share(memory->UsageOf(1).value_bytes, settings_.pool_bytes);
        result.efficiency_min = std::min(result.efficiency_min, result.efficiency_end);
        result.efficiency_mean += result.efficiency_end;
        ++result.samples;
      }
      if (progress_ && ++tried % kProgressEvery == 0 &&
          !progress_((static_cast<double>(phase) + Share(done, per_phase)) /
                     static_cast<double>(scenario.phases.size())))
        return Error(StatusCode::kUnavailable, "interrupted");
    }
  }
  if (result.samples > 0) result.efficiency_mean /= static_cast<double>(result.samples);
  result.evictions = memory->UsageOf(1).evicted_objects - evicted_before;
  return result;
}

Result<TenantsResult> MemoryBench::RunTenants(uint64_t value_bytes) {
  EMS_ASSIGN_OR_RETURN(const auto memory, Memory::Make(settings_, 2));
  ObjectStore& store = memory->store();
  std::set<ino_t> files[2];
  TenantsResult result;
  result.pool_bytes = settings_.pool_bytes;
  LatencyRecorder filling;
  uint64_t inserted = 0;
  const auto insert = [&](uint64_t tenant, LatencyRecorder* reserve) {
    const Object object{fmt::format("object-{:016}", inserted++), value_bytes};
    const std::byte* where = nullptr;
    const Status stored =
        Insert(store, Memory::RefOf(tenant), object, inserted, reserve, nullptr, &where);
    if (stored.ok()) files[tenant - 1].insert(memory->files().FileAt(where));
    return stored.ok();
  };
  StopFlag never;
  while (memory->UsageOf(1).evicted_objects == 0) {
    if (!insert(1, &filling)) never.WaitFor(kRetryAfter);
  }
  const TimePoint start = Now();
  const Deadline deadline = Deadline::After(kGrowTimeout);
  // Segments are handed over whole: half of the pool, up to one of them.
  const uint64_t half =
      settings_.pool_bytes / 2 - std::min(settings_.pool_bytes / 2, settings_.segment_bytes);
  while (result.half_ms < 0 && !deadline.Passed()) {
    if (insert(2, &result.reserve)) {
      if (result.first_segment_ms < 0) result.first_segment_ms = 1e3 * SecondsSince(start);
    } else {
      ++result.refused;
      never.WaitFor(kRetryAfter);
    }
    if (memory->UsageOf(2).segment_bytes >= std::max(half, settings_.segment_bytes))
      result.half_ms = 1e3 * SecondsSince(start);
    if (progress_ && inserted % kProgressEvery == 0 && !progress_(0.5))
      return Error(StatusCode::kUnavailable, "interrupted");
  }
  result.quiet_bytes = memory->UsageOf(1).segment_bytes;
  result.growing_bytes = memory->UsageOf(2).segment_bytes;
  result.quiet_files = files[0].size();
  result.growing_files = files[1].size();
  for (const ino_t file : files[1]) result.files_in_both += files[0].contains(file) ? 1 : 0;
  return result;
}

}  // namespace ems::bench
