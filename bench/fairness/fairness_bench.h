#pragma once
// What one client's calls cost while others ask the same io thread for much: small Gets beside a
// bulk reader and a bulk writer, and Puts beside a flood of announced values that never come.
//
// The server has one io thread and a core of its own. The callers share another core, where those
// that move bulk give way to the one that is measured: they stand for clients on other machines,
// so that what is measured is how the server divides itself, not how the scheduler divides a core.
#include <cstdint>
#include <string>

#include "bench/harness/latency_recorder.h"
#include "common/bytes.h"
#include "common/status.h"

namespace ems::bench {

struct FairnessSettings {
  uint64_t gets = 20'000;  // of 4 KiB, quiet and as many beside the bulk
  uint64_t puts = 1000;    // of 1 MiB, likewise
  uint64_t bulk_keys = 64;
  uint64_t bulk_value_bytes = kMiB;
  uint64_t announced = 300;  // Puts whose values never come
  uint64_t announced_bytes = 4 * kMiB;
  std::string programs;  // as FindDaemon takes it
};

// The same calls without the others and beside them.
struct Contrast {
  LatencyRecorder quiet, busy;
  double p99_ratio() const { return busy.p99_ms() / quiet.p99_ms(); }
};

struct FairnessResult {
  Contrast gets;
  Contrast puts;
  uint64_t bulk_read_bytes = 0, bulk_written_bytes = 0;  // meanwhile
  double bulk_seconds = 0;
  uint64_t evicted_objects = 0;  // by the flood: the values fit
};

// Starts a controller and a server of its own. Errors: kFailedPrecondition  fewer than two CPUs
// kNotFound  a program is not there    of a call that fails    kCancelled  interrupted
Result<FairnessResult> RunFairnessBench(const FairnessSettings& settings);

}  // namespace ems::bench
