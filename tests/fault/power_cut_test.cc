// What must hold: what has been synced is enough. Cuts of power, of the server, the controller or
// both, lose nothing that was acknowledged as durable and bring nothing back. The seed is printed;
// ems-crashtest --power repeats it.
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "tests/fault/crashtest/power_run.h"

namespace ems::testing {
namespace {

// How soon a missing sync shows is a matter of luck: in the first run as a rule, in one of two at
// worst.
constexpr int kRunsMax = 20;

// Several runs: the first life in an empty folder makes what later ones only use.
// How many values that were held back have been written.
uint64_t CutInRuns(int runs, int cuts, PowerOptions options) {
  uint64_t quiet_writes = 0;
  options.cuts = cuts;
  options.seed = std::random_device()();
  for (int i = 0; i < runs; ++i, ++options.seed) {
    const Result<PowerReport> report = RunPowerCuts(options);
    EXPECT_TRUE(report.ok()) << "seed " << options.seed << ": " << report.status();
    if (!report.ok()) break;
    for (const std::string& text : report->broken)
      ADD_FAILURE() << "seed " << options.seed << ": " << text;
    EXPECT_EQ(report->logs, "");
    EXPECT_EQ(report->cuts, cuts) << "seed " << options.seed;
    EXPECT_GT(report->unsynced, 0u) << "seed " << options.seed;
    EXPECT_GT(report->checks, 0u) << "seed " << options.seed;
    quiet_writes += report->quiet_writes;
  }
  return quiet_writes;
}

// Whether a life is long enough for a key to be quiet is a matter of luck, too.
TEST(PowerCutTest, WithRoomForAll) {
  uint64_t quiet_writes = CutInRuns(4, 4, {});
  for (int i = 0; i < kRunsMax && quiet_writes == 0; ++i) quiet_writes = CutInRuns(1, 4, {});
  EXPECT_GT(quiet_writes, 0u) << "no held-back value was written";
}

TEST(PowerCutTest, WhileRegionsAreGivenUpAllTheTime) { (void)CutInRuns(1, 4, {.tight = true}); }

// What it had when it left is older than what the others have been given since.
TEST(PowerCutTest, WithAServerThatLeavesAndComesBack) { (void)CutInRuns(1, 5, {.joins = true}); }

// The proof that the tests above would see it.
TEST(PowerCutTest, ASyncThatIsMissingIsMissed) {
  for (const char* paths : {"*/regions/*.region", "*/index/*.log", "*/server-0", "*/store/*.log"}) {
    PowerOptions options;
    options.cuts = 4;
    options.lost_syncs = paths;
    options.seed = std::random_device()();
    bool missed = false;
    for (int i = 0; i < kRunsMax && !missed; ++i, ++options.seed) {
      const Result<PowerReport> report = RunPowerCuts(options);
      missed = report.ok() && !report->broken.empty();
    }
    EXPECT_TRUE(missed) << paths;
  }
}

}  // namespace
}  // namespace ems::testing
