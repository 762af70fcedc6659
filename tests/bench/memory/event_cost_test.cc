#include "bench/memory/event_cost.h"

#include <gtest/gtest.h>

#include "common/bytes.h"

namespace ems::bench {
namespace {

TEST(EventCostTest, PutsOfBothSidesAreMeasuredAndOneSideIsPublished) {
  MemorySettings settings;
  settings.pool_bytes = 64 * kMiB;
  settings.segment_bytes = 8 * kMiB;
  settings.insertions = 2000;
  settings.huge_pages = fabric::HugePages::kOff;
  const Result<EventCost> cost = MeasureEventCost(settings, 147'456);
  ASSERT_TRUE(cost.ok()) << ToString(cost.status());
  EXPECT_EQ(cost->rounds, 10u);
  EXPECT_GT(cost->on_us, 0);
  EXPECT_GT(cost->off_us, 0);
  EXPECT_GT(cost->ratio, 0);
  EXPECT_GT(cost->events, 0u);
  // One for each Put of one side, and one for each of them that was evicted.
  EXPECT_LE(cost->events + cost->lost, 4000u);
}

}  // namespace
}  // namespace ems::bench
