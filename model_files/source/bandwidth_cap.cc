#include "model_files/source/bandwidth_cap.h"

#include <algorithm>

namespace ems::model {

Duration BandwidthCap::Reserve(uint64_t bytes) {
  if (!limits()) return Duration::zero();
  const double seconds = static_cast<double>(bytes) / static_cast<double>(bytes_per_s_);
  // A tiny rate and a huge piece: a wait of a day is beyond every deadline.
  const double most = std::chrono::duration<double>(Deadline::kMost).count();
  const auto cost =
      std::chrono::duration_cast<Duration>(std::chrono::duration<double>(std::min(seconds, most)));
  const TimePoint now = clock_->Now();
  auto next = next_.Lock();
  const TimePoint turn = std::max(*next, now - kBurst);
  *next = std::min(turn + cost, now + Deadline::kMost);
  return std::max(turn - now, Duration::zero());
}

}  // namespace ems::model
