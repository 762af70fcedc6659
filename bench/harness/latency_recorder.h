#pragma once
// Latencies of many calls in fixed memory: a log-linear histogram, 128 steps for each power of two.
//
// Invariant: count, sum, least and most are exact; a quantile is within 0.4 % of a latency that was
// recorded. Bound: 35 KiB a recorder, whatever is recorded; what takes longer than 18 minutes
// counts as 18 minutes in quantiles.
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "common/clock.h"

namespace ems::bench {

// Threading: one thread; give each thread its own and Merge them.
class LatencyRecorder final {
 public:
  LatencyRecorder() : counts_(std::make_unique<Counts>()) {}

  // Cost: O(1), no allocation. A negative latency counts as zero.
  void Record(Duration latency);
  void Merge(const LatencyRecorder& other);

  uint64_t count() const { return count_; }
  // All zero while nothing has been recorded.
  double avg_ms() const;
  double min_ms() const;
  double max_ms() const;
  // The latency that a share `q` (0 … 1) of the calls did not exceed. Cost: O(buckets).
  double QuantileMs(double q) const;
  double QuantileUs(double q) const { return QuantileMs(q) * 1e3; }
  double p50_ms() const { return QuantileMs(0.50); }
  double p99_ms() const { return QuantileMs(0.99); }

 private:
  static constexpr int kStepBits = 7;
  static constexpr int kNanosBits = 40;
  static constexpr size_t kBuckets = size_t{kNanosBits - kStepBits + 1} << kStepBits;
  using Counts = std::array<uint64_t, kBuckets>;

  static size_t BucketOf(uint64_t ns);
  static uint64_t MiddleOf(size_t bucket);

  std::unique_ptr<Counts> counts_;
  uint64_t count_ = 0;
  uint64_t sum_ns_ = 0;
  uint64_t min_ns_ = UINT64_MAX;
  uint64_t max_ns_ = 0;
};

}  // namespace ems::bench
