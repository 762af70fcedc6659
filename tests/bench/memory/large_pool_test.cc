#include "bench/memory/large_pool.h"

#include <gtest/gtest.h>

#include "common/bytes.h"

namespace ems::bench {
namespace {

TEST(LargePoolTest, APoolThatThisMachineHasNotIsCountedAndItsClientsAreLookedAt) {
  LargePoolSettings settings;
  settings.pool_bytes = 1024 * kGiB;
  settings.sessions = 4;
  settings.made_bytes = 32 * kMiB;
  settings.huge_pages = fabric::HugePages::kOff;
  const Result<LargePoolCost> cost = MeasureLargePool(settings);
  ASSERT_TRUE(cost.ok()) << ToString(cost.status());
  EXPECT_EQ(cost->segments, 1009u);
  EXPECT_EQ(cost->segment_bytes, 1040 * kMiB);
  EXPECT_EQ(cost->made_bytes, 32 * kMiB);
  EXPECT_GT(cost->made_gbps, 0);
  EXPECT_GT(cost->memset_gbps, 0);
  EXPECT_GT(cost->start_s(), 0);
  EXPECT_EQ(cost->sessions, 4u);
  EXPECT_EQ(cost->segments_given, 1009u);
  EXPECT_GT(cost->round_ms, 0);
}

}  // namespace
}  // namespace ems::bench
