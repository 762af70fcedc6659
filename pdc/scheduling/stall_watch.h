#pragma once
// Tells a worker that stands still from one that has nothing to do: the last tier of heartbeats.
// The first tier is that its process answers, the second that its threads count on (XDS §6).
//
// Pure: no clock, no I/O. Threading: caller locks.
#include <cstdint>
#include <optional>

#include "common/clock.h"
#include "common/status.h"

namespace ems::pdc {

class StallWatch final {
 public:
  // A worker that is busy and has not counted on for longer than `limit` stands still. The time
  // counts from the first look that found it so: looks may be far apart while nobody needs it.
  explicit StallWatch(Duration limit) : limit_(limit) {}

  // Now `ticks` steps were done, and `busy`: there is something to do. Moments do not go back.
  // Errors: kUnavailable  it stands still; says for how long
  Status Observe(uint64_t ticks, bool busy, TimePoint now);

 private:
  const Duration limit_;
  uint64_t ticks_ = 0;
  std::optional<TimePoint> counted_;  // the first look at these ticks; none while it is idle
};

}  // namespace ems::pdc
