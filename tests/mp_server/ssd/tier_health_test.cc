#include "mp_server/ssd/tier_health.h"

#include <gtest/gtest.h>

namespace ems::ssd {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(TierHealthTest, ARefusalDegradesUntilItHeals) {
  ManualClock clock;
  TierHealth health(&clock);
  EXPECT_EQ(health.state(), TierState::kOk);
  EXPECT_FALSE(health.MayTry());
  health.Degrade("first");
  health.Degrade("second");
  EXPECT_EQ(health.state(), TierState::kDegraded);
  EXPECT_EQ(health.reason(), "second");
  EXPECT_EQ(health.degraded_times(), 1u);
  EXPECT_FALSE(health.MayTry());
  clock.Advance(milliseconds(500));
  EXPECT_TRUE(health.MayTry());
  health.Heal();
  EXPECT_EQ(health.state(), TierState::kOk);
  EXPECT_FALSE(health.MayTry());
}

TEST(TierHealthTest, TriesAreFurtherApartEachTimeUpToABound) {
  ManualClock clock;
  TierHealth health(&clock);
  health.Degrade("disk");
  for (const Duration wait :
       {Duration(milliseconds(500)), Duration(seconds(1)), Duration(seconds(2)),
        Duration(seconds(4)), Duration(seconds(8)), Duration(seconds(10)), Duration(seconds(10))}) {
    clock.Advance(wait - milliseconds(1));
    EXPECT_FALSE(health.MayTry());
    clock.Advance(milliseconds(1));
    EXPECT_TRUE(health.MayTry());
    health.PutOff("still");
  }
  EXPECT_EQ(health.degraded_times(), 1u);
}

// Healing alone is no proof: an index may open and refuse the next write again.
TEST(TierHealthTest, OnlyAWriteThatWentWellMakesTheNextTryASoonOne) {
  ManualClock clock;
  TierHealth health(&clock);
  health.Degrade("disk");
  health.Heal();
  health.Degrade("disk");
  clock.Advance(milliseconds(500));
  EXPECT_FALSE(health.MayTry());
  health.OnWritten();
  clock.Advance(milliseconds(500));
  ASSERT_TRUE(health.MayTry()) << "a write while it is degraded changes nothing";
  health.Heal();
  health.OnWritten();
  health.Degrade("disk");
  clock.Advance(milliseconds(500));
  EXPECT_TRUE(health.MayTry());
}

}  // namespace
}  // namespace ems::ssd
