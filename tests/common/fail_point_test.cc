// What must hold: disarmed places do nothing; an armed one acts at the hit that was asked for; what
// cannot be read is refused and leaves what was armed alone.
#include "common/fail_point.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/clock.h"

namespace ems {
namespace {

using ::testing::HasSubstr;

class FailPointTest : public ::testing::Test {
 protected:
  ~FailPointTest() override { (void)ArmFailPoints(""); }
};

TEST_F(FailPointTest, DisarmedPlacesDoNothing) {
  EMS_FAIL_POINT("a.b");
  EXPECT_TRUE(FailPointError("a.b").ok());
}

TEST_F(FailPointTest, ErrorsComeAtTheHitThatWasAskedFor) {
  ASSERT_TRUE(ArmFailPoints("a.b=error@2 c=error").ok());
  EXPECT_TRUE(FailPointError("a.b").ok());
  EXPECT_EQ(FailPointError("a.b").code(), StatusCode::kUnavailable);
  EXPECT_TRUE(FailPointError("a.b").ok());
  EXPECT_FALSE(FailPointError("c").ok());
  EXPECT_FALSE(FailPointError("c").ok());
  EXPECT_TRUE(FailPointError("d").ok());
  ASSERT_TRUE(ArmFailPoints("").ok());
  EXPECT_TRUE(FailPointError("c").ok());
}

TEST_F(FailPointTest, ASleepTakesItsTime) {
  ASSERT_TRUE(ArmFailPoints("a=sleep(20)").ok());
  const TimePoint began = Clock::System().Now();
  EMS_FAIL_POINT("a");
  EXPECT_GE(Clock::System().Now() - began, std::chrono::milliseconds(20));
}

TEST_F(FailPointTest, KillIsTheEndWithoutAWord) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        (void)ArmFailPoints("a=kill@2");
        EMS_FAIL_POINT("a");
        EMS_FAIL_POINT("a");
      },
      ::testing::KilledBySignal(SIGKILL), "");
}

TEST_F(FailPointTest, WhatCannotBeReadIsNamedAndChangesNothing) {
  ASSERT_TRUE(ArmFailPoints("a=error").ok());
  for (const char* text : {"b", "=kill", "b=die", "b=kill@x", "b=sleep(x)", "b=sleep"}) {
    const Status armed = ArmFailPoints(text);
    EXPECT_EQ(armed.code(), StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(Message(armed)), HasSubstr("fail point")) << text;
  }
  EXPECT_FALSE(FailPointError("a").ok());
}

}  // namespace
}  // namespace ems
