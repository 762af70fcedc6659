#include "common/latency_set.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>

#include "common/check.h"

namespace ems {
namespace {

// Powers of two nanoseconds.
constexpr std::array<uint32_t, 19> kBounds = {9,  10, 11, 12, 13, 14, 15, 16, 17, 18,
                                              19, 20, 21, 22, 24, 26, 28, 30, 34};

// Whether no bucket lies on both sides of the bound.
constexpr size_t BucketsBelow(uint32_t bound) {
  return size_t{bound - LatencyBuckets::kStepBits + 1} << LatencyBuckets::kStepBits;
}

}  // namespace

size_t LatencyBuckets::Of(uint64_t ns) {
  constexpr uint64_t kSteps = uint64_t{1} << kStepBits;
  if (ns < kSteps) return ns;
  const auto shift = static_cast<uint32_t>(std::bit_width(ns)) - 1 - kStepBits;
  return std::min<size_t>(size_t{shift + 1} * kSteps + ((ns >> shift) & (kSteps - 1)), kCount - 1);
}

uint64_t LatencyBuckets::LeastOf(size_t bucket) {
  constexpr uint64_t kSteps = uint64_t{1} << kStepBits;
  if (bucket < kSteps) return bucket;
  return (kSteps + bucket % kSteps) << (bucket / kSteps - 1);
}

Duration Latencies::Quantile(double q) const {
  if (count == 0) return Duration::zero();
  const auto rank = static_cast<uint64_t>(std::ceil(q * static_cast<double>(count)));
  uint64_t seen = 0;
  size_t bucket = 0;
  for (; bucket + 1 < buckets.size(); ++bucket) {
    seen += buckets[bucket];
    if (seen >= std::max<uint64_t>(rank, 1)) break;
  }
  const uint64_t least = LatencyBuckets::LeastOf(bucket);
  return Duration(static_cast<int64_t>((least + LatencyBuckets::LeastOf(bucket + 1)) / 2));
}

LatencySet::Counts* LatencySet::Make(std::atomic<Counts*>* at) {
  auto owned = owned_.Lock();
  if (Counts* const made = at->load(std::memory_order_acquire)) return made;  // by another thread
  owned->push_back(std::make_unique<Counts>());
  at->store(owned->back().get(), std::memory_order_release);
  return owned->back().get();
}

void LatencySet::Record(size_t kind, Duration took) {
  EMS_CHECK(kind < kinds_, "latency of kind {} of {}", kind, kinds_);
  const size_t cell = ThreadCell();
  std::atomic<Counts*>& at = counts_[cell * kinds_ + kind];
  Counts* counts = at.load(std::memory_order_acquire);
  if (counts == nullptr) counts = Make(&at);
  const auto ns = static_cast<uint64_t>(std::max<int64_t>(took.count(), 0));
  AddInCell(cell, &counts->buckets[LatencyBuckets::Of(ns)], 1);
  AddInCell(cell, &counts->sum_ns, ns);
}

Latencies LatencySet::Of(size_t kind) const {
  EMS_CHECK(kind < kinds_, "latency of kind {} of {}", kind, kinds_);
  Latencies sum;
  for (size_t cell = 0; cell < kThreadCells; ++cell) {
    const Counts* const counts = counts_[cell * kinds_ + kind].load(std::memory_order_acquire);
    if (counts == nullptr) continue;
    for (size_t i = 0; i < sum.buckets.size(); ++i) {
      const uint64_t calls = counts->buckets[i].load(std::memory_order_relaxed);
      sum.buckets[i] += calls;
      sum.count += calls;
    }
    sum.sum_ns += counts->sum_ns.load(std::memory_order_relaxed);
  }
  return sum;
}

void AppendHistogram(std::string_view name, std::string_view help,
                     std::span<const LatencySeries> series, std::string* text) {
  const auto to = std::back_inserter(*text);
  bool begun = false;
  for (const auto& [labels, latencies] : series) {
    if (latencies.count == 0) continue;
    if (!begun) fmt::format_to(to, "# HELP {0} {1}\n# TYPE {0} histogram\n", name, help);
    begun = true;
    uint64_t below = 0;
    size_t bucket = 0;
    for (const uint32_t bound : kBounds) {
      for (; bucket < BucketsBelow(bound); ++bucket) below += latencies.buckets[bucket];
      fmt::format_to(to, "{}_bucket{{{},le=\"{:.9g}\"}} {}\n", name, labels,
                     static_cast<double>(uint64_t{1} << bound) / 1e9, below);
    }
    fmt::format_to(to, "{0}_bucket{{{1},le=\"+Inf\"}} {2}\n{0}_sum{{{1}}} {3:.9g}\n", name, labels,
                   latencies.count, static_cast<double>(latencies.sum_ns) / 1e9);
    fmt::format_to(to, "{}_count{{{}}} {}\n", name, labels, latencies.count);
  }
}

}  // namespace ems
