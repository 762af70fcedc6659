#pragma once
// Time as the program sees it: a monotonic clock that tests can move, and deadlines on it.
// Leases and deadlines never use wall time, so a stepped clock changes nothing.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>

namespace ems {

using Duration = std::chrono::nanoseconds;
// A point on CLOCK_BOOTTIME (it goes on while a machine sleeps, unlike CLOCK_MONOTONIC).
using TimePoint = std::chrono::time_point<std::chrono::steady_clock, Duration>;

// Threading: thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual TimePoint Now() const = 0;
  // The machine's own clock. Lives for ever.
  static const Clock& System();
};

// A clock that stands until it is moved. Threading: thread-safe.
class ManualClock final : public Clock {
 public:
  TimePoint Now() const override {
    return TimePoint(Duration(now_ns_.load(std::memory_order_acquire)));
  }
  void Advance(Duration by) { now_ns_.fetch_add(by.count(), std::memory_order_acq_rel); }

 private:
  std::atomic<int64_t> now_ns_{1'000'000'000};
};

// The latest moment at which a call may still wait. Copies freely.
class Deadline final {
 public:
  // A longer wait is a wait without end: later deadlines are taken for this, and poll(2) can say
  // it.
  static constexpr Duration kMost = std::chrono::hours(24);
  static Deadline After(Duration timeout) {
    return Deadline(Clock::System().Now() + std::min(timeout, kMost));
  }
  explicit Deadline(TimePoint at) : at_(at) {}
  TimePoint at() const { return at_; }
  // Zero when it has passed.
  Duration Remaining() const {
    const Duration left = at_ - Clock::System().Now();
    return left > Duration::zero() ? left : Duration::zero();
  }
  bool Passed() const { return Remaining() == Duration::zero(); }
  // Remaining time in whole milliseconds, rounded up, for poll(2).
  int RemainingMs() const {
    return static_cast<int>(
        std::chrono::ceil<std::chrono::milliseconds>(std::min(Remaining(), kMost)).count());
  }

 private:
  TimePoint at_;
};

// CPU time used by this process so far, user and system.
Duration ProcessCpuTime();

}  // namespace ems
