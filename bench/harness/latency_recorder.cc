#include "bench/harness/latency_recorder.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace ems::bench {

size_t LatencyRecorder::BucketOf(uint64_t ns) {
  ns = std::min(ns, (uint64_t{1} << kNanosBits) - 1);
  const int shift = std::max(0, static_cast<int>(std::bit_width(ns)) - 1 - kStepBits);
  return (static_cast<size_t>(shift) << kStepBits) + static_cast<size_t>(ns >> shift);
}

uint64_t LatencyRecorder::MiddleOf(size_t bucket) {
  constexpr size_t kSteps = size_t{1} << kStepBits;
  const size_t shift = bucket < 2 * kSteps ? 0 : bucket / kSteps - 1;
  const uint64_t first = (bucket - (shift << kStepBits)) << shift;
  return first + ((uint64_t{1} << shift) - 1) / 2;
}

void LatencyRecorder::Record(Duration latency) {
  const auto ns = static_cast<uint64_t>(std::max<int64_t>(0, latency.count()));
  ++(*counts_)[BucketOf(ns)];
  ++count_;
  sum_ns_ += ns;
  min_ns_ = std::min(min_ns_, ns);
  max_ns_ = std::max(max_ns_, ns);
}

void LatencyRecorder::Merge(const LatencyRecorder& other) {
  for (size_t i = 0; i < kBuckets; ++i) (*counts_)[i] += (*other.counts_)[i];
  count_ += other.count_;
  sum_ns_ += other.sum_ns_;
  min_ns_ = std::min(min_ns_, other.min_ns_);
  max_ns_ = std::max(max_ns_, other.max_ns_);
}

double LatencyRecorder::avg_ms() const {
  return count_ == 0 ? 0 : static_cast<double>(sum_ns_) / static_cast<double>(count_) / 1e6;
}
double LatencyRecorder::min_ms() const {
  return count_ == 0 ? 0 : static_cast<double>(min_ns_) / 1e6;
}
double LatencyRecorder::max_ms() const { return static_cast<double>(max_ns_) / 1e6; }

double LatencyRecorder::QuantileMs(double q) const {
  if (count_ == 0) return 0;
  const auto rank =
      static_cast<uint64_t>(std::ceil(std::clamp(q, 0.0, 1.0) * static_cast<double>(count_)));
  uint64_t seen = 0;
  for (size_t i = 0; i < kBuckets; ++i) {
    seen += (*counts_)[i];
    if (seen >= std::max<uint64_t>(1, rank)) {
      return static_cast<double>(std::clamp(MiddleOf(i), min_ns_, max_ns_)) / 1e6;
    }
  }
  return max_ms();
}

}  // namespace ems::bench
