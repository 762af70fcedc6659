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

// Lets through one retry for each `requests` requests, and a burst of `burst`.
// Threading: thread-safe.
class RetryBudget final {
 public:
  explicit RetryBudget(int64_t burst = 100, int64_t requests = 10)
      : requests_(requests), parts_(burst * requests), parts_max_(burst * requests) {}
  void OnRequest() {
    if (parts_.load(std::memory_order_relaxed) < parts_max_)
      parts_.fetch_add(1, std::memory_order_relaxed);
  }
  bool TryRetry() {
    if (parts_.fetch_sub(requests_, std::memory_order_relaxed) >= requests_) return true;
    parts_.fetch_add(requests_, std::memory_order_relaxed);
    return false;
  }

 private:
  const int64_t requests_;
  std::atomic<int64_t> parts_;  // of retries, `requests_` of them each
  const int64_t parts_max_;
};

}  // namespace ems
