#include "pdc/scheduling/stall_watch.h"

#include <gtest/gtest.h>

namespace ems::pdc {
namespace {

using std::chrono::milliseconds;

class StallWatchTest : public ::testing::Test {
 protected:
  StatusCode At(int ms, uint64_t ticks, bool busy) {
    return watch_.Observe(ticks, busy, start_ + milliseconds(ms)).code();
  }
  const TimePoint start_ = TimePoint{} + std::chrono::hours(1);
  StallWatch watch_{milliseconds(100)};
};

TEST_F(StallWatchTest, WhoCountsOnIsWellHoweverBusy) {
  for (int i = 0; i < 10; ++i)
    EXPECT_EQ(At(90 * i, static_cast<uint64_t>(i), true), StatusCode::kOk);
}

TEST_F(StallWatchTest, WhoHasNothingToDoMayStandStill) {
  for (int i = 0; i < 10; ++i) EXPECT_EQ(At(90 * i, 7, false), StatusCode::kOk);
}

TEST_F(StallWatchTest, BusyAndStillBeyondTheLimitIsAStallUntilItMoves) {
  EXPECT_EQ(At(0, 7, true), StatusCode::kOk);
  EXPECT_EQ(At(100, 7, true), StatusCode::kOk);
  EXPECT_EQ(At(101, 7, true), StatusCode::kUnavailable);
  EXPECT_EQ(At(500, 7, true), StatusCode::kUnavailable);
  EXPECT_EQ(At(501, 8, true), StatusCode::kOk);
  EXPECT_EQ(At(600, 8, true), StatusCode::kOk);
}

TEST_F(StallWatchTest, TheTimeCountsFromTheFirstLookAfterAnIdleOne) {
  EXPECT_EQ(At(0, 7, false), StatusCode::kOk);
  EXPECT_EQ(At(1000, 7, false), StatusCode::kOk);
  EXPECT_EQ(At(1090, 7, true), StatusCode::kOk);
  EXPECT_EQ(At(1190, 7, true), StatusCode::kOk);
  EXPECT_EQ(At(1191, 7, true), StatusCode::kUnavailable);
}

// Nobody looked for long; that it has begun with something does not make it stand still.
TEST_F(StallWatchTest, WhoBeginsAfterALongRestIsWell) {
  EXPECT_EQ(At(0, 7, false), StatusCode::kOk);
  EXPECT_EQ(At(60'000, 7, true), StatusCode::kOk);
  EXPECT_EQ(At(60'090, 7, true), StatusCode::kOk);
}

}  // namespace
}  // namespace ems::pdc
