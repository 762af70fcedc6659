#pragma once
// Keeps calls to a dead server cheap: after five failures in a row it says no for a second, then
// lets one call probe.
#include <algorithm>
#include <chrono>

#include "common/clock.h"
#include "common/guarded.h"

namespace ems::internal {

// Threading: thread-safe.
class CircuitBreaker final {
 public:
  static constexpr int kFailuresToOpen = 5;
  static constexpr Duration kOpenFor = std::chrono::seconds(1);

  // May a call go out now? A half-open breaker lets one through per kOpenFor.
  bool Allow(TimePoint now) {
    auto state = state_.Lock();
    if (state->failures < kFailuresToOpen) return true;
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
    state->failures = std::min(state->failures + 1, kFailuresToOpen);
    if (state->failures < kFailuresToOpen) return false;
    const bool opened = now >= state->closed_until;
    state->closed_until = now + kOpenFor;
    return opened;
  }

 private:
  struct State {
    int failures = 0;
    TimePoint closed_until{};
  };
  Guarded<State> state_;
};

}  // namespace ems::internal
