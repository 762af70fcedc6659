// What must hold: counts, sums and extremes are exact, quantiles are within one percent, merging
// loses nothing.
#include "bench/harness/latency_recorder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace ems::bench {
namespace {

TEST(LatencyRecorderTest, EmptyIsAllZero) {
  const LatencyRecorder empty;
  EXPECT_EQ(empty.count(), 0U);
  EXPECT_EQ(empty.avg_ms(), 0);
  EXPECT_EQ(empty.min_ms(), 0);
  EXPECT_EQ(empty.max_ms(), 0);
  EXPECT_EQ(empty.p99_ms(), 0);
}

TEST(LatencyRecorderTest, OneValueIsEveryQuantile) {
  LatencyRecorder one;
  one.Record(Duration(1'234'567));
  for (const double q : {0.0, 0.5, 1.0}) EXPECT_DOUBLE_EQ(one.QuantileMs(q), 1.234567);
}

TEST(LatencyRecorderTest, QuantilesAreWithinOnePercentFromNanosecondsToMinutes) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> exponent(0, 11.5);
  LatencyRecorder recorder;
  std::vector<double> exact;
  for (int i = 0; i < 50'000; ++i) {
    const auto ns = static_cast<int64_t>(std::pow(10, exponent(random)));
    recorder.Record(Duration(ns));
    exact.push_back(static_cast<double>(ns) / 1e6);
  }
  std::sort(exact.begin(), exact.end());
  for (const double q : {0.001, 0.1, 0.5, 0.9, 0.99, 0.999, 1.0}) {
    const auto rank = static_cast<size_t>(std::ceil(q * static_cast<double>(exact.size()))) - 1;
    EXPECT_NEAR(recorder.QuantileMs(q), exact[rank], exact[rank] * 0.01) << q;
  }
  EXPECT_DOUBLE_EQ(recorder.min_ms(), exact.front());
  EXPECT_DOUBLE_EQ(recorder.max_ms(), exact.back());
}

TEST(LatencyRecorderTest, MergeEqualsRecordingEverythingInOne) {
  LatencyRecorder a, b, all;
  for (int i = 1; i <= 1000; ++i) {
    (i % 3 == 0 ? a : b).Record(Duration(i * 1000));
    all.Record(Duration(i * 1000));
  }
  a.Merge(b);
  EXPECT_EQ(a.count(), all.count());
  EXPECT_EQ(a.avg_ms(), all.avg_ms());
  EXPECT_EQ(a.min_ms(), all.min_ms());
  EXPECT_EQ(a.max_ms(), all.max_ms());
  EXPECT_EQ(a.p50_ms(), all.p50_ms());
  EXPECT_EQ(a.p99_ms(), all.p99_ms());
}

TEST(LatencyRecorderTest, ExtremesAreTaken) {
  LatencyRecorder recorder;
  recorder.Record(Duration(-5));
  recorder.Record(std::chrono::hours(24));
  EXPECT_EQ(recorder.count(), 2U);
  EXPECT_EQ(recorder.min_ms(), 0);
  EXPECT_DOUBLE_EQ(recorder.max_ms(), 24.0 * 3600 * 1000);
  EXPECT_GT(recorder.QuantileMs(1), 1e6);  // 18 minutes or more
}

}  // namespace
}  // namespace ems::bench
