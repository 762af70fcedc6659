// What must hold: over real daemons every object that was acknowledged is read again after a
// restart, Puts are timed on both sides, and nothing is left behind.
#include "bench/ssd/ssd_server_bench.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "tests/mp_server/ssd/ssd_fixture.h"
#include "tests/support/paths.h"

namespace ems::bench {
namespace {

using ::testing::HasSubstr;

TEST(SsdServerBenchTest, EveryAcknowledgedObjectIsBackAfterARestart) {
  const ::ems::testing::TempFolder folder;
  std::string said;
  SsdServerBench bench(folder.path(), ems::testing::BinDir(), false,
                       [&](const std::string& line) { said += line; });
  const auto restart = bench.Restart("again", 3000, 4096);
  ASSERT_TRUE(restart.ok()) << ToString(restart.status());
  EXPECT_EQ(restart->missing, 0);
  EXPECT_EQ(restart->wrong, 0);
  EXPECT_GT(restart->ready_seconds, 0);
  EXPECT_THAT(said, HasSubstr("0 missing, 0 wrong"));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(SsdServerBenchTest, PutsAreTimedWithTheTierAndWithout) {
  const ::ems::testing::TempFolder folder;
  SsdServerBench bench(folder.path(), ems::testing::BinDir(), false, [](const std::string&) {});
  const auto puts = bench.Puts(20, 65536);
  ASSERT_TRUE(puts.ok()) << ToString(puts.status());
  for (const PutTimes* times : {&puts->with_tier, &puts->without}) {
    EXPECT_EQ(times->fresh.count(), 20);
    EXPECT_EQ(times->overwrite.count(), 20);
    EXPECT_EQ(times->again.count(), 20);
  }
  EXPECT_GT(puts->fresh_p99_ratio(), 0);
  EXPECT_EQ(puts->disk_syncs.count(), 20);
  EXPECT_GT(puts->overwrite_p99_vs_limit(), 0);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(TierPutsTest, WithoutCallsThereIsNoRatio) {
  EXPECT_TRUE(std::isnan(TierPuts().fresh_p99_ratio()));
}

}  // namespace
}  // namespace ems::bench
