// What must hold: a sleep never ends early, and a moment that has passed is not waited for.
#include "common/sleep.h"

#include <gtest/gtest.h>

namespace ems {
namespace {

using std::chrono::microseconds;

TEST(SleepTest, NeverEndsEarly) {
  for (const int us : {1, 15, 25, 300, 2000}) {
    const TimePoint at = Clock::System().Now() + microseconds(us);
    SleepUntil(at);
    EXPECT_GE(Clock::System().Now(), at) << us;
  }
}

TEST(SleepTest, DoesNotWaitForThePast) {
  const TimePoint now = Clock::System().Now();
  SleepUntil(now - std::chrono::hours(1));
  SleepUntil(TimePoint{});
  EXPECT_LT(Clock::System().Now() - now, std::chrono::hours(1));
}

TEST(WakeupLeadTest, GrowsToWhatTheMachineTakesAndNotToItsWorst) {
  WakeupLead lead;
  for (int i = 0; i < 500; ++i) lead.Learn(i % 10 == 0 ? microseconds(3000) : microseconds(40));
  EXPECT_GT(lead.value(), microseconds(35));
  EXPECT_LT(lead.value(), microseconds(50));
}

TEST(WakeupLeadTest, ShrinksWhereWakeUpsArePrompt) {
  WakeupLead lead;
  for (int i = 0; i < 500; ++i) lead.Learn(microseconds(3));
  EXPECT_LT(lead.value(), microseconds(6));
}

TEST(WakeupLeadTest, HasABound) {
  WakeupLead lead;
  for (int i = 0; i < 500; ++i) lead.Learn(std::chrono::seconds(1));
  EXPECT_EQ(lead.value(), kSleepSpinMost);
}

}  // namespace
}  // namespace ems
