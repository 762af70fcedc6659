#pragma once
// A circuit breaker: after some failures in a row, five unless said otherwise, calls are refused
// for a second, then one is let through as a probe.
#include <algorithm>
#include <chrono>

#include "common/clock.h"
#include "common/guarded.h"

namespace ems {

// Threading: thread-safe.
class CircuitBreaker final {
 public:
  static constexpr int kFailuresToOpen = 5;
  static constexpr Duration kOpenFor = std::chrono::seconds(1);

  explicit CircuitBreaker(int failures_to_open = kFailuresToOpen)
      : failures_to_open_(failures_to_open) {}

  // May a call go out now? A half-open breaker lets one through per kOpenFor.
  bool Allow(TimePoint now) {
    auto state = state_.Lock();
    if (state->failures < failures_to_open_) return true;
    if (now < state->closed_until) return false;
    state->closed_until = now + kOpenFor;  // this call is the probe
    return true;
  }
  void OnSuccess() {
    auto state = state_.Lock();
    state->failures = 0;
  }
  // True when this failure opened it.
  bool OnFailure(TimePoint now) {
    auto state = state_.Lock();
    state->failures = std::min(state->failures + 1, failures_to_open_);
    if (state->failures < failures_to_open_) return false;
    const bool opened = now >= state->closed_until;
    state->closed_until = now + kOpenFor;
    return opened;
  }

 private:
  struct State {
    int failures = 0;
    TimePoint closed_until{};
  };
  const int failures_to_open_;
  Guarded<State> state_;
};

}  // namespace ems
