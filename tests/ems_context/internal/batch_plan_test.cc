#include "ems_context/internal/batch_plan.h"

#include <gtest/gtest.h>

#include <random>

namespace ems::context {
namespace {

using Ranges = std::vector<BatchRange>;

TEST(BatchPlanTest, NothingNeedsNoBatch) { EXPECT_TRUE(PlanBatches({}, {}).empty()); }

TEST(BatchPlanTest, CutsByBytes) {
  const std::vector<uint64_t> sizes = {40, 60, 1, 99, 1};
  EXPECT_EQ(PlanBatches(sizes, {.bytes_max = 100, .items_max = 10}),
            (Ranges{{0, 2}, {2, 4}, {4, 5}}));
}

TEST(BatchPlanTest, CutsByItems) {
  const std::vector<uint64_t> sizes(5, 0);
  EXPECT_EQ(PlanBatches(sizes, {.bytes_max = 100, .items_max = 2}),
            (Ranges{{0, 2}, {2, 4}, {4, 5}}));
}

TEST(BatchPlanTest, AnItemAboveTheLimitTravelsAlone) {
  const std::vector<uint64_t> sizes = {1, 101, 1, UINT64_MAX, 0};
  const Ranges plan = PlanBatches(sizes, {.bytes_max = 100, .items_max = 10});
  EXPECT_EQ(plan, (Ranges{{0, 1}, {1, 2}, {2, 3}, {3, 4}, {4, 5}}));
}

// What must hold: ranges are in order, cover everything once, and keep both limits.
TEST(BatchPlanTest, AnyPlanCoversAllItemsWithinTheLimits) {
  std::mt19937 random(7);  // seed: fixed, so a failure repeats
  for (int round = 0; round < 200; ++round) {
    std::vector<uint64_t> sizes(random() % 100);
    for (uint64_t& size : sizes) size = random() % 50;
    const BatchLimits limits{.bytes_max = 50 + random() % 200, .items_max = 1 + random() % 20};
    size_t next = 0;
    for (const BatchRange range : PlanBatches(sizes, limits)) {
      ASSERT_EQ(range.begin, next);
      ASSERT_GT(range.size(), 0u);
      ASSERT_LE(range.size(), limits.items_max);
      uint64_t bytes = 0;
      for (size_t i = range.begin; i < range.end; ++i) bytes += sizes[i];
      ASSERT_LE(bytes, limits.bytes_max);
      next = range.end;
    }
    ASSERT_EQ(next, sizes.size());
  }
}

}  // namespace
}  // namespace ems::context
