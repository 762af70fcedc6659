#pragma once
// What many readers of one object get together, with copies of hot objects on other servers and
// without: servers whose network is far slower than their processors, so that one server's network
// is what bounds the readers of what it alone has.
#include <cstdint>
#include <string>
#include <vector>

#include "bench/harness/latency_recorder.h"
#include "common/bytes.h"
#include "common/status.h"

namespace ems::bench {

struct HotSettings {
  uint32_t servers = 4;
  uint32_t copies = 3;
  uint32_t readers = 8;
  double nic_bytes_per_s = 100e6;
  uint64_t value_bytes = kMiB;
  double seconds = 5;    // of each measurement
  std::string programs;  // as FindDaemon takes it
};

struct HotSide {
  uint32_t copies = 0;
  uint64_t reads = 0;
  uint64_t copy_reads = 0, copy_misses = 0;  // of reads; of copies that were not there
  uint64_t wrong_bytes = 0;
  double seconds = 0;
  double gbps = 0;                  // all readers together
  std::vector<double> server_gbps;  // what each server sent meanwhile
  LatencyRecorder calls;
};

struct HotResult {
  HotSide off, on;
  double ratio() const { return off.gbps > 0 ? on.gbps / off.gbps : 0; }
};

// Starts a controller and servers of its own, twice. Errors: kNotFound  a program is not there
// kDeadlineExceeded  no copy was made in time    of a call that fails    kCancelled  interrupted
Result<HotResult> RunHotBench(const HotSettings& settings);

}  // namespace ems::bench
