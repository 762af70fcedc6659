#pragma once
// A token bucket that all reads of one source share, so that a prefetch leaves the network to
// others.
//
// Invariant: over any stretch of time t, at most bytes_per_s * (t + kBurst) bytes plus one piece of
// each reader come due. Turns are given in order of asking, so no reader starves.
#include <cstdint>

#include "common/clock.h"
#include "common/guarded.h"

namespace ems::model {

// Threading: thread-safe.
class BandwidthCap final {
 public:
  // What may come at once after a pause: as much as the rate brings in this time.
  static constexpr Duration kBurst = std::chrono::milliseconds(50);

  // `bytes_per_s` 0: no cap. `clock` must outlive this.
  explicit BandwidthCap(uint64_t bytes_per_s, const Clock* clock = &Clock::System())
      : bytes_per_s_(bytes_per_s), clock_(clock) {}

  bool limits() const { return bytes_per_s_ > 0; }
  // Takes the next turn for `bytes`: how long from now the caller waits before it uses them, zero
  // if not at all. What was reserved is spent, used or not.   Cost: O(1), one leaf lock.
  Duration Reserve(uint64_t bytes);

 private:
  const uint64_t bytes_per_s_;
  const Clock* const clock_;
  Guarded<TimePoint> next_;  // when all turns given so far are over
};

}  // namespace ems::model
