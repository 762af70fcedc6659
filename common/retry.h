#pragma once
// Limits of retries: exponential back-off with jitter, and a budget that keeps retries a small
// share of the work, however many requests fail.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>

#include "common/clock.h"

namespace ems {

// Delays 10 ms, 20 ms, … up to 1 s, each with ±50 % jitter. Threading: one thread.
class Backoff final {
 public:
  explicit Backoff(uint64_t seed, Duration first = std::chrono::milliseconds(10),
                   Duration most = std::chrono::seconds(1))
      : state_(seed | 1), first_(first), most_(most), next_(first) {}
  Duration Next() {
    const Duration base = next_;
    next_ = std::min(most_, next_ * 2);
    state_ ^= state_ << 13, state_ ^= state_ >> 7, state_ ^= state_ << 17;
    return base / 2 +
           Duration(static_cast<int64_t>(state_ % static_cast<uint64_t>(base.count() + 1)));
  }
  void Reset() { next_ = first_; }

 private:
  uint64_t state_;
  Duration first_, most_, next_;
};

// Lets through one retry for each ten requests, and a burst of `burst`. Threading: thread-safe.
class RetryBudget final {
 public:
  explicit RetryBudget(int64_t burst = 100) : tokens_tenths_(burst * 10), tenths_max_(burst * 10) {}
  void OnRequest() {
    if (tokens_tenths_.load(std::memory_order_relaxed) < tenths_max_)
      tokens_tenths_.fetch_add(1, std::memory_order_relaxed);
  }
  bool TryRetry() {
    if (tokens_tenths_.fetch_sub(10, std::memory_order_relaxed) >= 10) return true;
    tokens_tenths_.fetch_add(10, std::memory_order_relaxed);
    return false;
  }

 private:
  std::atomic<int64_t> tokens_tenths_;
  int64_t tenths_max_;
};

}  // namespace ems
