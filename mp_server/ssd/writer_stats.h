#pragma once
// Counters of the log writer since the start.
#include <cstdint>

#include "common/guarded.h"

namespace ems::ssd {

struct WriterStats {
  uint64_t written_objects = 0;
  uint64_t written_bytes = 0;          // values
  uint64_t disk_bytes = 0;             // of all writes to regions, padding and headers included
  uint64_t shed_objects = 0;           // not taken: too much waits already, or the tier is degraded
  uint64_t refused_small_objects = 0;  // not taken: the index has no room for so small ones
  uint64_t superseded_objects = 0;     // removed or replaced before they were written
  uint64_t spared_objects = 0;         // held back, and overwritten or removed meanwhile
  uint64_t quiet_objects = 0;          // held back, and written when their keys were quiet
  uint64_t failed_objects = 0;
  uint64_t commits = 0;
  uint64_t synced_commits = 0;
  uint64_t reclaimed_regions = 0;
  uint64_t reclaimed_objects = 0;  // gone with them
  uint64_t moved_objects = 0;      // kept, because clients had read them
  uint64_t degraded_times = 0;
  uint64_t dirty_bytes = 0;
  uint64_t held_back_bytes = 0;  // of them: until their keys are quiet
  uint64_t regions = 0;
  uint64_t index_bytes = 0;  // on the disk
};

// Threading: thread-safe (one leaf lock).
class WriterCounts final {
 public:
  void Add(uint64_t WriterStats::*counter, uint64_t by = 1) {
    auto stats = stats_.Lock();
    (*stats).*counter += by;
  }
  void Set(uint64_t WriterStats::*gauge, uint64_t value) {
    auto stats = stats_.Lock();
    (*stats).*gauge = value;
  }
  WriterStats Get() {
    auto stats = stats_.Lock();
    return *stats;
  }

 private:
  Guarded<WriterStats> stats_;
};

}  // namespace ems::ssd
