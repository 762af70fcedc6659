// What must hold: over real daemons both kinds of calls are timed quiet and busy, the bulk moves
// meanwhile, and a flood of announced values evicts nothing.
#include "bench/fairness/fairness_bench.h"

#include <gtest/gtest.h>

#include "tests/support/paths.h"

namespace ems::bench {
namespace {

TEST(FairnessBenchTest, TimesCallsBesideBulkAndBesideAnnouncedValues) {
  const auto result = RunFairnessBench({.gets = 300,
                                        .puts = 20,
                                        .bulk_keys = 4,
                                        .announced = 50,
                                        .programs = ems::testing::BinDir()});
  ASSERT_TRUE(result.ok()) << ToString(result.status());
  EXPECT_EQ(result->gets.quiet.count(), 300);
  EXPECT_EQ(result->gets.busy.count(), 300);
  EXPECT_EQ(result->puts.quiet.count(), 20);
  EXPECT_EQ(result->puts.busy.count(), 20);
  EXPECT_GT(result->gets.p99_ratio(), 0);
  EXPECT_GT(result->bulk_seconds, 0);
  EXPECT_EQ(result->evicted_objects, 0);
}

TEST(FairnessBenchTest, SaysThatAProgramIsMissing) {
  EXPECT_EQ(RunFairnessBench({.programs = "/nonexistent"}).status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace ems::bench
