#pragma once
// The rate and the remaining time of a job, from successive samples of the bytes it has done.
#include <cstdint>
#include <deque>
#include <optional>

#include "common/clock.h"

namespace ems::model {

// Rate over the last kWindow, so that a change of pace shows soon and a stumble does not. Bound:
// kSamplesMax samples. Threading: one thread.
class ProgressMeter final {
 public:
  static constexpr Duration kWindow = std::chrono::seconds(10);
  static constexpr size_t kSamplesMax = 100;

  // `done` bytes by `now`, of job `job`; another job, or less than before, starts from scratch.
  void Add(TimePoint now, uint64_t job, uint64_t done);
  // 0 until two samples lie at least a millisecond apart.
  double bytes_per_s() const;
  // Until `total` is done at that rate; nothing: unknown, or nothing moves.
  std::optional<Duration> TimeLeft(uint64_t total) const;

 private:
  struct Sample {
    TimePoint at;
    uint64_t done;
  };
  std::deque<Sample> samples_;
  uint64_t job_ = 0;
};

}  // namespace ems::model
