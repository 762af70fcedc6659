#include "bench/memory/hazard_cost.h"

#include <gtest/gtest.h>

#include "common/bytes.h"

namespace ems::bench {
namespace {

TEST(HazardCostTest, PutsAreMeasuredWithoutClientsAndBesideThem) {
  MemorySettings settings;
  settings.pool_bytes = 64 * kMiB;
  settings.segment_bytes = 8 * kMiB;
  settings.insertions = 1000;
  settings.huge_pages = fabric::HugePages::kOff;
  const Result<HazardCost> cost = MeasureHazardCost(settings, 10, 147'456);
  ASSERT_TRUE(cost.ok()) << ToString(cost.status());
  EXPECT_EQ(cost->sessions, 10u);
  EXPECT_EQ(cost->hazards, 1024u);
  EXPECT_EQ(cost->with.count() + cost->without.count() + cost->refused, 2000u);
  EXPECT_GT(cost->p50_ratio(), 0);
}

}  // namespace
}  // namespace ems::bench
