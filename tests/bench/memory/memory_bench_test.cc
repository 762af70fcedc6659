#include "bench/memory/memory_bench.h"

#include <gtest/gtest.h>

namespace ems::bench {
namespace {

MemorySettings Small(uint64_t insertions) {
  MemorySettings settings;
  settings.pool_bytes = 64 * kMiB;
  settings.segment_bytes = 8 * kMiB;
  settings.insertions = insertions;
  settings.samples = 50;
  settings.huge_pages = fabric::HugePages::kOff;
  return settings;
}

TEST(MemoryBenchTest, CountsWhatHappensAtAFullPool) {
  double last = 0;
  MemoryBench bench(Small(2000), [&](double done) {
    EXPECT_GE(done, last);
    last = done;
    return true;
  });
  const auto result = bench.Run({"blocks", {{100'000, 100'000}}, 0.90});
  ASSERT_TRUE(result.ok()) << ToString(result.status());
  EXPECT_EQ(result->insertions, 2000u);
  EXPECT_EQ(result->refused, 0u);
  EXPECT_EQ(result->reserve.count(), 2000u);
  EXPECT_EQ(result->put.count(), 2000u);
  EXPECT_EQ(result->samples, 50u);
  EXPECT_GT(result->efficiency_min, 0.8);
  EXPECT_LE(result->efficiency_min, result->efficiency_mean);
  EXPECT_LT(result->efficiency_mean, 1);
  EXPECT_NEAR(result->evictions_per_insertion(), 1, 0.1);
  EXPECT_GT(result->hit_rate(result->hits), 0.1);
  EXPECT_NEAR(result->hit_rate(result->hits), result->byte_hit_rate(result->hits), 1e-9);
  EXPECT_GT(last, 0);
}

TEST(MemoryBenchTest, PhasesShareTheInsertions) {
  MemoryBench bench(Small(900));
  const auto result =
      bench.Run({"shift", {{4 * kKiB, 64 * kKiB}, {64 * kKiB, kMiB}, {4 * kKiB, 8 * kKiB}}, 0.80});
  ASSERT_TRUE(result.ok()) << ToString(result.status());
  EXPECT_EQ(result->insertions + result->refused, 900u);
}

TEST(MemoryBenchTest, EndsWhenItsProgressSaysSo) {
  MemoryBench bench(Small(100'000), [](double) { return false; });
  EXPECT_EQ(bench.Run({"blocks", {{100'000, 100'000}}, 0.90}).status().code(),
            StatusCode::kUnavailable);
}

TEST(MemoryBenchTest, AGrowingTenantGetsHalfThePoolAndNoFileOfTheQuietOne) {
  MemoryBench bench(Small(100));
  const auto result = bench.RunTenants(100'000);
  ASSERT_TRUE(result.ok()) << ToString(result.status());
  EXPECT_GE(result->half_ms, 0);
  EXPECT_GE(result->half_ms, result->first_segment_ms);
  EXPECT_GE(result->growing_bytes, 24 * kMiB);
  EXPECT_GE(result->quiet_bytes, 24 * kMiB);
  EXPECT_EQ(result->quiet_files, 8u);
  EXPECT_GE(result->growing_files, 1u);
  EXPECT_EQ(result->files_in_both, 0u);
}

}  // namespace
}  // namespace ems::bench
