#pragma once
// Benchmarks of a whole server's SSD tier, measured by a client: the time of a restart from a disk
// with a cold page cache, whether every acknowledged object is there afterwards, and the tier's
// effect on the latency of a Put.
//
// Bound on the disk: the bytes of one restart, or of the Puts.
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "bench/harness/bench_server.h"
#include "bench/harness/latency_recorder.h"
#include "common/status.h"

namespace ems::bench {

struct ServerRestart {
  std::string name;  // "server_restart_1M_4KiB"
  uint64_t objects = 0;
  uint64_t value_bytes = 0;
  double ready_seconds = 0;
  std::string dropped{};  // whose page cache, as DropPageCache says
  uint64_t missing = 0;   // acknowledged and not found
  uint64_t wrong = 0;     // found with other bytes
  double read_seconds = 0;
};

// Calls of one server.
struct PutTimes {
  LatencyRecorder fresh;      // keys that were not there
  LatencyRecorder overwrite;  // of the same keys, other bytes: what they replace is on the SSD
  LatencyRecorder again;      // of kHotKeys of them, in turn, again and again
};
struct TierPuts {
  uint64_t value_bytes = 0;
  PutTimes with_tier, without;
  // Each a few bytes of a file and its sync: what the wait of an overwrite cannot be less
  // than.
  LatencyRecorder disk_syncs;
  // p99 with the tier / without it; not a number without calls.
  double fresh_p99_ratio() const;
  double overwrite_p99_ratio() const;
  // p99 with the tier / (p99 without it + p99 of the disk's own sync).
  double overwrite_p99_vs_limit() const;
  double again_p99_ratio() const;
};

// What the tiers of these servers may take of the disk.
uint64_t SsdBytesOfRestart(uint64_t objects, uint64_t value_bytes);
uint64_t SsdBytesOfPuts(uint64_t count, uint64_t value_bytes);

// Threading: one thread.
class SsdServerBench final {
 public:
  using Say = std::function<void(const std::string& line)>;
  // `folder`: exists; what the bench makes in there is removed again. `programs`: as FindDaemon
  // takes it. `drop_whole_page_cache`: before a restart, as DropPageCache takes it.
  SsdServerBench(std::string folder, std::string programs, bool drop_whole_page_cache, Say say)
      : folder_(std::move(folder)),
        programs_(std::move(programs)),
        drop_whole_page_cache_(drop_whole_page_cache),
        say_(std::move(say)) {}

  // Puts objects with durability `ssd`, kills the server, drops the page cache, starts the server
  // again and reads all of them. Blocks.
  // Errors: kUnavailable  a Put was refused    those of BenchServer    kCancelled  interrupted
  Result<ServerRestart> Restart(std::string name, uint64_t objects, uint64_t value_bytes);
  // One Put after the other, in turns between a server with a tier and one without: `count` new
  // keys, then all of them again with other bytes, once the SSD has what was put, then `count`
  // overwrites of a few of them. Some come first that do not count: memory is slow at its first
  // touch, and of the few the SSD is to have none. Errors: as above
  Result<TierPuts> Puts(uint64_t count, uint64_t value_bytes);

 private:
  const std::string folder_, programs_;
  const bool drop_whole_page_cache_;
  const Say say_;
};

}  // namespace ems::bench
