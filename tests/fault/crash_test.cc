// What must hold: ten kills, from outside and at fail points, break no promise. The seed is
// printed; ems-crashtest repeats it.
#include <gtest/gtest.h>

#include <random>

#include "tests/fault/crashtest/crash_run.h"

namespace ems::testing {
namespace {

void RunTen(bool tight) {
  CrashOptions options;
  options.kills = 5;
  options.tight = tight;
  options.seed = std::random_device()();
  const Result<CrashReport> report = RunCrashes(options);
  ASSERT_TRUE(report.ok()) << "seed " << options.seed << ": " << report.status();
  for (const std::string& text : report->broken)
    ADD_FAILURE() << "seed " << options.seed << ": " << text;
  EXPECT_EQ(report->kills, options.kills);
  EXPECT_GT(report->hits, 0u) << "seed " << options.seed;
}

TEST(CrashTest, WithRoomForAll) { RunTen(false); }
TEST(CrashTest, WhileRegionsAreGivenUpAllTheTime) { RunTen(true); }

}  // namespace
}  // namespace ems::testing
