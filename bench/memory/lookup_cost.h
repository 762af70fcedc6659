#pragma once
// Measures a server's time for one key of a batched look-up, without the network: frames of
// MultiExists through the data service in this process, over objects that are all in DRAM.
#include <cstdint>

#include "bench/memory/memory_bench.h"
#include "common/status.h"

namespace ems::bench {

struct LookupCost {
  uint64_t keys = 0;  // of a frame
  uint64_t frames = 0;
  double ns = 0;      // a key, in the median of the frames
  double ns_min = 0;  // in the fastest one
};

// One frame for each 500 of `settings.insertions`, 20 at least.
// Errors: kResourceExhausted  the machine has no memory for the pool
Result<LookupCost> MeasureLookupCost(const MemorySettings& settings);

}  // namespace ems::bench
