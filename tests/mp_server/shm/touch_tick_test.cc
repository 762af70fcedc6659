// What must hold: the more uses a visit finds the sooner the next one is, between two bounds.
#include "mp_server/shm/touch_tick.h"

#include <gtest/gtest.h>

namespace ems::server {
namespace {

TEST(TouchTickTest, AStormIsLookedAtOften) {
  TouchTick tick;
  EXPECT_EQ(tick.After(1'000'000), TouchTick::kMinMs);
  EXPECT_EQ(tick.After(1'000'000), TouchTick::kMinMs);
}

TEST(TouchTickTest, FewUsesWaitForEachOtherButNotForLong) {
  TouchTick tick;
  EXPECT_EQ(tick.After(0), TouchTick::kMaxMs);
  EXPECT_EQ(tick.After(0), TouchTick::kMaxMs);
  EXPECT_EQ(tick.After(1), TouchTick::kMaxMs);
}

TEST(TouchTickTest, ASteadyRateIsMetWithTheGoal) {
  TouchTick tick;
  const uint64_t uses_per_ms = 20;
  for (int i = 0; i < 4; ++i) tick.After(uses_per_ms * static_cast<uint64_t>(tick.ms()));
  EXPECT_NEAR(static_cast<double>(uses_per_ms) * tick.ms(), TouchTick::kGoal, 2 * uses_per_ms);
}

TEST(TouchTickTest, AStormAfterQuietIsMetAtTheNextVisit) {
  TouchTick tick;
  tick.After(0);
  EXPECT_EQ(tick.After(4096), TouchTick::kMinMs);
}

}  // namespace
}  // namespace ems::server
