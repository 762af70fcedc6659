#include "bench/control/control_bench.h"

#include <gtest/gtest.h>

namespace ems::bench {
namespace {

TEST(ControlBenchTest, AChangeReachesAllWatchersAndIsNotASecondOne) {
  const auto result =
      RunControlBench({.servers = 3, .watchers = 10, .connections = 2, .rounds = 2});
  ASSERT_TRUE(result.ok()) << result.status();
  ASSERT_EQ(result->changes.size(), 4U);
  EXPECT_EQ(result->changes[0].change, "join");
  EXPECT_EQ(result->changes[1].change, "leave");
  for (const ChangeResult& change : result->changes) {
    EXPECT_EQ(change.arrivals.latency.count(), 10U);
    EXPECT_GT(change.arrivals.bytes_max, 0U);
    EXPECT_GT(change.decided, Duration::zero());
  }
  EXPECT_GT(result->blocked, Duration::zero()) << "the probe has run";
  EXPECT_EQ(result->failed_beats, 0U);
}

TEST(ControlBenchTest, PlacementIsTheSameEachTime) {
  const PlacementFigures one = MeasurePlacementOf(10), two = MeasurePlacementOf(10);
  EXPECT_EQ(one.max_over_mean, two.max_over_mean);
  EXPECT_EQ(one.join_bytes, two.join_bytes);
  EXPECT_GE(one.max_over_mean, 1);
  EXPECT_LT(one.max_over_mean, 1.01);
  EXPECT_NEAR(one.leave_moved, 1, 0.01);
  EXPECT_LT(one.slot_bytes, one.join_bytes);
  EXPECT_LT(one.join_bytes, one.whole_bytes);
}

}  // namespace
}  // namespace ems::bench
