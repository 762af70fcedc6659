#include "bench/memory/lookup_cost.h"

#include <gtest/gtest.h>

#include "common/bytes.h"

namespace ems::bench {
namespace {

TEST(LookupCostTest, EachFrameIsMeasured) {
  MemorySettings settings;
  settings.pool_bytes = 16 * kMiB;
  settings.segment_bytes = 2 * kMiB;
  settings.insertions = 100;
  settings.huge_pages = fabric::HugePages::kOff;
  const Result<LookupCost> cost = MeasureLookupCost(settings);
  ASSERT_TRUE(cost.ok()) << ToString(cost.status());
  EXPECT_EQ(cost->frames, 20u);
  EXPECT_GT(cost->ns_min, 0);
  EXPECT_GE(cost->ns, cost->ns_min);
}

}  // namespace
}  // namespace ems::bench
