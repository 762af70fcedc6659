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

}  // namespace
}  // namespace ems
