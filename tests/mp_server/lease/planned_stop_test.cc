// What must hold: a server that is to stop serves on until others have its slots and want nothing
// more of it, and no longer than it may; where there is nobody to wait for it does not wait.
#include "mp_server/lease/planned_stop.h"

#include <gtest/gtest.h>

namespace ems::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class PlannedStopTest : public ::testing::Test {
 protected:
  TimePoint now_ = TimePoint(seconds(100));
  PlannedStop stop_{now_, seconds(4)};
};

TEST_F(PlannedStopTest, ItServesOnWhileItOwnsSlotsOrOthersFetchFromIt) {
  EXPECT_FALSE(stop_.IsOver(StopAnswer::kNone, 5, now_));
  EXPECT_FALSE(stop_.IsOver(StopAnswer::kServeOn, 5, now_ + seconds(1)));
  EXPECT_FALSE(stop_.IsOver(StopAnswer::kServeOn, 0, now_ + seconds(2)));
  EXPECT_FALSE(stop_.IsOver(StopAnswer::kServeOn, 0, now_ + seconds(3)));
  EXPECT_TRUE(stop_.IsOver(StopAnswer::kMayStop, 0, now_ + seconds(3)));
}

TEST_F(PlannedStopTest, ClientsHearOfTheViewBeforeItIsGone) {
  EXPECT_FALSE(stop_.IsOver(StopAnswer::kMayStop, 0, now_));
  EXPECT_FALSE(stop_.IsOver(StopAnswer::kMayStop, 0, now_ + milliseconds(499)));
  EXPECT_TRUE(stop_.IsOver(StopAnswer::kMayStop, 0, now_ + milliseconds(500)));
}

TEST_F(PlannedStopTest, ItsTimeIsOverWhoeverStillFetches) {
  EXPECT_FALSE(stop_.IsOver(StopAnswer::kServeOn, 5, now_ + milliseconds(3999)));
  EXPECT_TRUE(stop_.IsOver(StopAnswer::kServeOn, 5, now_ + seconds(4)));
}

TEST_F(PlannedStopTest, WithoutAControllerOrAnotherServerItDoesNotWait) {
  EXPECT_TRUE(stop_.IsOver(StopAnswer::kUnreachable, 5, now_));
  EXPECT_TRUE(stop_.IsOver(StopAnswer::kMayStop, 5, now_)) << "nobody could have its slots";
}

}  // namespace
}  // namespace ems::server
