#pragma once
// The memory of one server, in process: how much of a full pool is payload, and how long taking
// room in it lasts. No byte of a value is written, so that only allocation and eviction are seen.
//
// A scenario is a cache in use: objects of a catalog four times as large as the pool are read, the
// popular ones more often, and what is missing is stored. So the order of eviction is not that of
// insertion, which is what tears holes into memory. Insertions follow each other without a pause:
// no time is left for work between them.
//
// Bound: catalogs of 2^22 objects; one pool at a time.
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/harness/latency_recorder.h"
#include "common/status.h"
#include "fabric/shm/shm_segment.h"
#include "mp_server/memory/segment_pool.h"

namespace ems::bench {

// Sizes drawn log-uniformly: each doubling is as likely as the next. Equal: one size.
struct MemorySizes {
  uint64_t bytes_min = 0;
  uint64_t bytes_max = 0;
};

struct MemoryScenario {
  std::string name;
  std::vector<MemorySizes> phases;  // each has its own catalog and the same number of insertions
  // The targets.
  double efficiency_min = 0;  // payload bytes / pool bytes at a full pool
  // Hits below the ideal's, in points of the reads, at most. Below zero with mixed sizes: a pool
  // that evicts large objects first keeps more of the small ones than an exact LRU.
  double hit_points_below = 0;
  double put_p99_us_max = 0;  // of Reserve and Publish together
};

struct MemorySettings {
  uint64_t pool_bytes = 0;
  uint64_t segment_bytes = 0;
  uint64_t insertions = 0;  // into a full pool, for each scenario
  uint64_t samples = 1000;  // of the efficiency
  uint64_t seed = 1;
  fabric::HugePages huge_pages = fabric::HugePages::kTry;
};

server::SegmentPool::Options PoolOptions(const MemorySettings& settings);

// All of it at a full pool: from the first eviction on.
struct MemoryResult {
  std::string name;
  double efficiency_min = 0, efficiency_mean = 0, efficiency_end = 0;
  uint64_t samples = 0;
  LatencyRecorder reserve;  // including the evictions that it makes
  LatencyRecorder put;      // Reserve and Publish together
  uint64_t insertions = 0;
  uint64_t evictions = 0;
  uint64_t refused = 0;  // insertions that found no room
  std::string refusal;   // what the last of them was told
  struct Hits {
    uint64_t objects = 0, bytes = 0;
    void Add(uint64_t value_bytes) {
      ++objects;
      bytes += value_bytes;
    }
  };
  Hits reads, hits;
  Hits ideal_hits;  // of an exact LRU of as many bytes as the pool has

  double evictions_per_insertion() const;
  // Shares of the reads, by objects and by bytes.
  double hit_rate(const Hits& of) const;
  double byte_hit_rate(const Hits& of) const;
};

// A tenant that has filled the pool goes quiet, another one grows.
struct TenantsResult {
  uint64_t pool_bytes = 0;
  double first_segment_ms = -1;  // until the growing tenant stored its first object
  double half_ms = -1;           // until it had half of the pool; negative: never
  uint64_t quiet_bytes = 0;      // of segments, at the end
  uint64_t growing_bytes = 0;    // likewise
  uint64_t quiet_files = 0;      // memfds in which the quiet tenant had objects
  uint64_t growing_files = 0;    // likewise
  uint64_t files_in_both = 0;    // must be 0
  uint64_t refused = 0;          // insertions that found no room
  LatencyRecorder reserve;       // of the growing tenant
};

// Threading: one thread.
class MemoryBench final {
 public:
  // `progress`: called now and then with the share done, 0 … 1; false from it ends the run.
  using Progress = std::function<bool(double done)>;
  explicit MemoryBench(const MemorySettings& settings, Progress progress = {})
      : settings_(settings), progress_(std::move(progress)) {}

  // Errors: kResourceExhausted  the machine has no memory for the pool    kUnavailable  interrupted
  Result<MemoryResult> Run(const MemoryScenario& scenario);
  Result<TenantsResult> RunTenants(uint64_t value_bytes);

 private:
  const MemorySettings settings_;
  const Progress progress_;
};

}  // namespace ems::bench
