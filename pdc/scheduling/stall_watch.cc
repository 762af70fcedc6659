#include "pdc/scheduling/stall_watch.h"

namespace ems::pdc {

Status StallWatch::Observe(uint64_t ticks, bool busy, TimePoint now) {
  if (!busy) {
    // When it will have begun with something nobody can say who looks later.
    counted_.reset();
    return OkStatus();
  }
  if (ticks != ticks_ || !counted_) {
    ticks_ = ticks;
    counted_ = now;
    return OkStatus();
  }
  const Duration still = now - *counted_;
  if (still <= limit_) return OkStatus();
  return Error(StatusCode::kUnavailable, "it is busy, and has not moved for {} ms",
               std::chrono::duration_cast<std::chrono::milliseconds>(still).count());
}

}  // namespace ems::pdc
