#pragma once
// Options, progress and statistics of a load.
#include <cstdint>
#include <functional>
#include <memory>

#include "common/bytes.h"
#include "common/clock.h"
#include "common/status.h"

namespace ems {
class StopFlag;
}

namespace ems::model {

struct LoadProgress {
  uint64_t bytes_done = 0;  // in place
  uint64_t bytes = 0;       // wanted
};

struct LoadOptions {
  uint32_t threads = 4;  // 1 to 64
  uint64_t batch_bytes = 64 * kMiB;
  // Verify each block's SHA-256, too, beside the checksum that every object has. Costs a pass over
  // the bytes, and ranges of blocks are read as whole blocks.
  bool verify_digests = false;
  // Read from the source here when the pool does not answer, or cannot hold the version.
  bool fallback_to_source = true;
  // How long nothing may come from the pool, nor the job make progress, before that happens; six
  // times as long while the servers answer. What the source sends the job is progress, too. Jobs
  // that fail as their source does not answer are started again for as long.
  Duration pool_patience = std::chrono::seconds(10);
  uint32_t priority = 0;  // of jobs that the load begins
  // Called every 100 ms or so on the thread that loads. May be empty.
  std::function<void(const LoadProgress&)> on_progress{};
  // Once set, the load ends with kCancelled, within a second or so: reads of the source that are
  // under way are ended, those of the pool have seconds at most. May be null.
  std::shared_ptr<StopFlag> stop{};
};

struct LoadStats {
  uint64_t bytes = 0;         // that arrived at the target
  uint64_t dram_bytes = 0;    // read from the pool's DRAM; more than wanted where slices are thin
  uint64_t ssd_bytes = 0;     // read from the pool's SSDs
  uint64_t source_bytes = 0;  // read from the source by this load
  uint64_t blocks = 0;
  uint64_t misses = 0;  // blocks that the pool was asked for in vain
  uint64_t jobs = 0;    // begun or joined
  Duration elapsed{0};
  Duration waiting{0};  // of it, with nothing to read
  Status detour;        // why blocks were read from the source; OK: none were, or they were damaged

  uint64_t pool_bytes() const { return dram_bytes + ssd_bytes; }
};

}  // namespace ems::model
