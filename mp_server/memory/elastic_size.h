#pragma once
// How large the pool should be, as the machine's memory comes and goes. Pure: no I/O, no clock.
#include <cstdint>

#include "common/clock.h"
#include "mp_server/memory/host_memory.h"

namespace ems::server {

struct ElasticOptions {
  uint64_t bytes_min = 0;                          // never less, whatever the machine needs
  uint64_t keep_free_bytes = 0;                    // left to others
  uint64_t step_bytes = 0;                         // sizes change by multiples of it: a segment
  Duration grow_after = std::chrono::seconds(10);  // with memory to spare all the time
};

// Threading: one thread.
class ElasticSize final {
 public:
  explicit ElasticSize(const ElasticOptions& options) : options_(options) {}

  struct Pool {
    uint64_t bytes = 0;  // its size
    uint64_t bytes_held =
        0;  // that it has of the machine now: less while it grows, more while it shrinks
    uint64_t bytes_most = 0;  // what it may grow to
  };
  // The size from now on. Shrinks at once when others need memory: when less than keep_free_bytes
  // is left, counting what the pool will still take or give back, or when tasks wait for memory
  // while little is left. Grows when there has been room for grow_after, half of the room a second.
  uint64_t Next(const MemoryReading& reading, const Pool& pool, TimePoint now);

  // What it would begin with on a machine that looks like this.
  uint64_t First(const MemoryReading& reading, uint64_t bytes_most) const;

 private:
  bool IsStalled(const MemoryReading& reading, TimePoint now);
  uint64_t Clamp(uint64_t bytes, uint64_t bytes_most) const;

  const ElasticOptions options_;
  TimePoint looked_at_{};
  uint64_t stalled_us_ = 0;
  TimePoint shrunk_at_{};
  TimePoint roomy_since_{};  // epoch: there is no room
};

}  // namespace ems::server
