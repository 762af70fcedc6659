#pragma once
// What a pool of a size that this machine need not have costs a server: its segments, the time to
// make their pages, and the look at all clients that "ems-shm" takes each 100 ms. The pool is
// simulated: its segments have all their addresses, and no pages.
#include <cstdint>

#include "bench/memory/memory_bench.h"
#include "common/status.h"

namespace ems::bench {

struct LargePoolSettings {
  uint64_t pool_bytes = 0;
  uint64_t sessions = 0;
  uint64_t made_bytes = 0;  // of real memory, to see how fast pages are made
  fabric::HugePages huge_pages = fabric::HugePages::kTry;
};

struct LargePoolCost {
  uint64_t segments = 0;
  uint64_t segment_bytes = 0;
  uint64_t made_bytes = 0;
  double made_gbps = 0;    // pages made by ShmSegment::Create, all of its threads
  double memset_gbps = 0;  // the same memory written by one thread, once it is there
  uint64_t sessions = 0;
  uint64_t segments_given = 0;  // to each session
  double round_ms = 0;          // the look at all sessions: the median of ten
  double start_s() const {      // until all of such a pool would be made
    return static_cast<double>(segments * segment_bytes) / (1e9 * made_gbps);
  }
};

// Every session is given every segment, of 2 MiB here, as only their number counts.
// Errors: kResourceExhausted  not enough memory, addresses or descriptors    kDeadlineExceeded
Result<LargePoolCost> MeasureLargePool(const LargePoolSettings& settings);

}  // namespace ems::bench
