#pragma once
// How long one server has taken lately until its answers began, for the decision to ask another
// one, too.
//
// Bound: the last kKept answers. What they were slow for does not matter: large values begin as
// soon as small ones.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>

#include "common/clock.h"

namespace ems::internal {

// Threading: thread-safe.
class RecentLatencies final {
 public:
  static constexpr size_t kKept = 64;
  static constexpr size_t kLeast = 32;  // with fewer nothing is said

  void Add(Duration took) {
    const auto us = std::chrono::ceil<std::chrono::microseconds>(took).count();
    const uint32_t place = next_.fetch_add(1, std::memory_order_relaxed);
    us_[place % kKept].store(static_cast<uint32_t>(std::clamp<int64_t>(us, 1, UINT32_MAX)),
                             std::memory_order_relaxed);
  }
  // What 95 in 100 of them took at most; none: there were too few. Cost: about 300 ns.
  std::optional<Duration> P95() const {
    std::array<uint32_t, kKept> sorted;
    size_t count = 0;
    for (const auto& one : us_) {
      const uint32_t us = one.load(std::memory_order_relaxed);
      if (us != 0) sorted[count++] = us;
    }
    if (count < kLeast) return std::nullopt;
    const auto at = sorted.begin() + static_cast<ptrdiff_t>(count * 95 / 100);
    std::nth_element(sorted.begin(), at, sorted.begin() + static_cast<ptrdiff_t>(count));
    return std::chrono::microseconds(*at);
  }

 private:
  std::atomic<uint32_t> next_{0};
  std::array<std::atomic<uint32_t>, kKept> us_{};  // 0: none yet
};

}  // namespace ems::internal
