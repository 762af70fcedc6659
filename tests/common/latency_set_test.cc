// What must hold: no call is lost, whichever thread recorded it; quantiles are as close as they
// say; and the Prometheus text is a histogram whose buckets add up.
#include "common/latency_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "common/thread_pool.h"

namespace ems {
namespace {

using ::testing::HasSubstr;
using namespace std::chrono_literals;

TEST(LatencySetTest, BucketsFollowEachOtherWithoutAGap) {
  EXPECT_EQ(LatencyBuckets::LeastOf(0), 0u);
  for (size_t i = 0; i < LatencyBuckets::kCount; ++i) {
    const uint64_t least = LatencyBuckets::LeastOf(i);
    EXPECT_EQ(LatencyBuckets::Of(least), i);
    EXPECT_EQ(LatencyBuckets::Of(LatencyBuckets::LeastOf(i + 1) - 1), i);
  }
  EXPECT_EQ(LatencyBuckets::Of(UINT64_MAX), LatencyBuckets::kCount - 1);
}

TEST(LatencySetTest, QuantilesAreCloseToWhatWasRecorded) {
  LatencySet set(1);
  EXPECT_EQ(set.Of(0).Quantile(0.99), 0ns);
  for (int64_t us = 1; us <= 10'000; ++us) set.Record(0, std::chrono::microseconds(us));
  const Latencies latencies = set.Of(0);
  EXPECT_EQ(latencies.count, 10'000u);
  EXPECT_EQ(latencies.sum_ns, 50'005'000'000u);
  EXPECT_NEAR(static_cast<double>(latencies.Quantile(0.5).count()), 5e6, 5e6 * 0.063);
  EXPECT_NEAR(static_cast<double>(latencies.Quantile(0.99).count()), 9.9e6, 9.9e6 * 0.063);
  EXPECT_LT(latencies.Quantile(0), 2us);
}

TEST(LatencySetTest, KindsAreKeptApartAndNoTimeIsNegative) {
  LatencySet set(3);
  set.Record(1, -5ns);
  set.Record(2, 1h);
  EXPECT_EQ(set.Of(0).count, 0u);
  EXPECT_EQ(set.Of(1).Quantile(1), 0ns);
  EXPECT_GT(set.Of(2).Quantile(1), 60s);
}

TEST(LatencySetTest, CallsOfAllThreadsAreAddedUp) {
  constexpr size_t kThreads = kThreadCells + 20;
  constexpr uint64_t kEach = 1000;
  LatencySet set(2);
  std::vector<Thread> threads;
  threads.reserve(kThreads);
  for (size_t i = 0; i < kThreads; ++i) {
    threads.emplace_back("caller", [&set, i] {
      for (uint64_t n = 0; n < kEach; ++n) set.Record(i % 2, 10us);
    });
  }
  threads.clear();
  EXPECT_EQ(set.Of(0).count + set.Of(1).count, kThreads * kEach);
  EXPECT_EQ(set.Of(0).sum_ns, kThreads / 2 * kEach * 10'000);
}

TEST(LatencySetTest, ThePrometheusTextAddsUpAndLeavesOutWhatNeverHappened) {
  LatencySet set(2);
  std::string text;
  const auto append = [&] {
    const std::vector<LatencySeries> series{{"op=\"get\"", set.Of(0)}, {"op=\"put\"", set.Of(1)}};
    AppendHistogram("ems_test_seconds", "What it took", series, &text);
  };
  append();
  EXPECT_EQ(text, "");
  set.Record(0, 600ns);
  set.Record(0, 1us);
  set.Record(0, 30s);
  append();
  EXPECT_THAT(text,
              ::testing::StartsWith("# HELP ems_test_seconds What it took\n"
                                    "# TYPE ems_test_seconds histogram\n"
                                    "ems_test_seconds_bucket{op=\"get\",le=\"5.12e-07\"} 0\n"
                                    "ems_test_seconds_bucket{op=\"get\",le=\"1.024e-06\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("le=\"17.1798692\"} 2\n"
                              "ems_test_seconds_bucket{op=\"get\",le=\"+Inf\"} 3\n"
                              "ems_test_seconds_sum{op=\"get\"} 30.0000016\n"
                              "ems_test_seconds_count{op=\"get\"} 3\n"));
  EXPECT_THAT(text, ::testing::Not(HasSubstr("put")));
  EXPECT_LE(std::ranges::count(text, '\n'), 24) << "20 buckets, two heads, sum and count";
}

}  // namespace
}  // namespace ems
