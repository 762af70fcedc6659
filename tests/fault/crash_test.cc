// What must hold: kills, from outside and at every fail point, break no guarantee. The seed is
// printed; ems-crashtest repeats it.
#include <gtest/gtest.h>

#include <random>

#include "tests/fault/crashtest/crash_run.h"

namespace ems::testing {
namespace {

// A start reads what is stored, not what was: it takes no longer after a crash. Milliseconds here.
constexpr std::chrono::seconds kStartMost{10};

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
  EXPECT_LT(report->slowest_start, kStartMost) << "seed " << options.seed;
}

TEST(CrashTest, WithRoomForAll) { RunTen(false); }
TEST(CrashTest, WhileRegionsAreGivenUpAllTheTime) { RunTen(true); }

// A guarantee about a moment is shown only by a death at that moment: each place has to be reached.
TEST(CrashTest, AtEachPlaceInTurn) {
  CrashOptions options;
  options.places = CrashPlaces();
  options.kills = static_cast<int>(options.places.size());
  options.tight = true;  // so that regions are reclaimed
  options.seed = std::random_device()();
  const Result<CrashReport> report = RunCrashes(options);
  ASSERT_TRUE(report.ok()) << "seed " << options.seed << ": " << report.status();
  for (const std::string& text : report->broken)
    ADD_FAILURE() << "seed " << options.seed << ": " << text;
  EXPECT_EQ(report->kills, options.kills) << "seed " << options.seed;
  EXPECT_EQ(report->inside, options.kills) << "seed " << options.seed;
  EXPECT_LT(report->slowest_start, kStartMost) << "seed " << options.seed;
}

}  // namespace
}  // namespace ems::testing
