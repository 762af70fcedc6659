#pragma once
// Latencies of many calls, by kind: recorded without a lock, each thread in buckets of its own
// (thread_cell.h), and added up when they are read.
//
// Buckets are log-linear, eight to each power of two nanoseconds: a quantile is within 6.3 % of a
// latency that was recorded. Bound: 2.2 KiB for each kind that a thread has recorded; what takes
// longer than 68 s counts as 68 s in quantiles.
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/clock.h"
#include "common/guarded.h"
#include "common/thread_cell.h"

namespace ems {

struct LatencyBuckets {
  static constexpr uint32_t kStepBits = 3;
  static constexpr uint32_t kNanosBits = 36;
  static constexpr size_t kCount = size_t{kNanosBits - kStepBits + 1} << kStepBits;
  static size_t Of(uint64_t ns);
  // The least latency that counts there.
  static uint64_t LeastOf(size_t bucket);
};

// Those of one kind, at one moment. Threading: one thread (holder).
struct Latencies {
  std::array<uint64_t, LatencyBuckets::kCount> buckets{};
  uint64_t count = 0;
  uint64_t sum_ns = 0;
  // What a share `q` (0 … 1) of the calls did not exceed; zero when there were none.
  Duration Quantile(double q) const;
};

// Threading: thread-safe.
class LatencySet final {
 public:
  explicit LatencySet(size_t kinds) : kinds_(kinds), counts_(kinds * kThreadCells) {}
  LatencySet(const LatencySet&) = delete;
  LatencySet& operator=(const LatencySet&) = delete;

  size_t kinds() const { return kinds_; }
  // A negative latency counts as zero. Cost: a few ns; once a thread and kind an allocation.
  void Record(size_t kind, Duration took);
  Latencies Of(size_t kind) const;

 private:
  struct Counts {
    std::array<std::atomic<uint64_t>, LatencyBuckets::kCount> buckets{};
    std::atomic<uint64_t> sum_ns{0};
  };
  Counts* Make(std::atomic<Counts*>* at);

  const size_t kinds_;
  // By cell, then kind; null until used. Release where it is made, acquire where it is read.
  std::vector<std::atomic<Counts*>> counts_;
  Guarded<std::vector<std::unique_ptr<Counts>>> owned_;
};

// Latencies under Prometheus labels: `op="get",path="socket"`.
struct LatencySeries {
  std::string labels;
  Latencies latencies;
};
// Appends them to a Prometheus text as one histogram in seconds; those that counted nothing are
// left out. Bounds are powers of two nanoseconds, 19 of them, from 0.5 µs to 17 s.
void AppendHistogram(std::string_view name, std::string_view help,
                     std::span<const LatencySeries> series, std::string* text);

}  // namespace ems
