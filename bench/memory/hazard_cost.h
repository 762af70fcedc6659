#pragma once
// Measures what clients that hold many views cost a Put into a full pool, which frees the memory of
// another object and looks first whether one of them is reading it. Rounds of Puts without clients
// and with them alternate; values are not written.
#include <cstdint>

#include "bench/harness/latency_recorder.h"
#include "bench/memory/memory_bench.h"
#include "common/status.h"

namespace ems::bench {

struct HazardCost {
  uint64_t sessions = 0;
  uint64_t hazards = 0;     // of each
  LatencyRecorder without;  // Reserve and Publish together
  LatencyRecorder with;
  uint64_t refused = 0;  // Puts that found no room: not many
  double p50_ratio() const { return with.p50_ms() / without.p50_ms(); }
};

// `settings.insertions` Puts of `value_bytes` each way. Every session has all hazard pointers that
// there are, none of which names an object of this pool.
// Errors: kResourceExhausted  the machine has no memory for the pool
Result<HazardCost> MeasureHazardCost(const MemorySettings& settings, uint64_t sessions,
                                     uint64_t value_bytes);

}  // namespace ems::bench
