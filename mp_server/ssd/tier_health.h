#pragma once
// The health of the tier's disk: whether it takes writes and, after a refusal, when a write is
// tried again.
//
// Bound: tries are 0.5 s to 10 s apart, twice as long each time until a write has gone well.
#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

#include "common/clock.h"
#include "common/guarded.h"

namespace ems::ssd {

enum class TierState : uint8_t { kOk, kDegraded, kOffline };
std::string_view TierStateName(TierState state);

// Threading: state(), reason() and degraded_times() thread-safe; the rest one thread (the tier's
// log thread).
class TierHealth final {
 public:
  explicit TierHealth(const Clock* clock) : clock_(clock) {}
  TierState state() const { return state_.load(std::memory_order_acquire); }
  // Of the last refusal.
  std::string reason();
  uint64_t degraded_times() const { return degraded_times_.load(std::memory_order_relaxed); }

  // The disk has refused.
  void Degrade(std::string reason);
  // It is time to try again.
  bool MayTry() const;
  // It has refused again.
  void PutOff(std::string reason);
  // It takes writes again.
  void Heal();
  // A write has gone well.
  void OnWritten();

 private:
  void BackOff();

  const Clock* const clock_;
  std::atomic<TierState> state_{TierState::kOk};
  std::atomic<uint64_t> degraded_times_{0};
  Guarded<std::string> reason_;
  Duration backoff_{};
  TimePoint retry_at_{};
};

}  // namespace ems::ssd
