// What must hold: time moves forward, stands still when told to, and deadlines never report
// negative time.
#include "common/clock.h"

#include <gtest/gtest.h>

namespace ems {
namespace {

using std::chrono::milliseconds;

TEST(ClockTest, SystemTimeNeverGoesBack) {
  TimePoint last = Clock::System().Now();
  for (int i = 0; i < 1000; ++i) {
    const TimePoint now = Clock::System().Now();
    ASSERT_GE(now, last);
    last = now;
  }
}

TEST(ClockTest, ManualClockMovesOnlyWhenTold) {
  ManualClock clock;
  const TimePoint start = clock.Now();
  EXPECT_EQ(clock.Now(), start);
  clock.Advance(milliseconds(250));
  EXPECT_EQ(clock.Now() - start, milliseconds(250));
}

TEST(DeadlineTest, PastDeadlineHasNoTimeLeft) {
  const Deadline past(Clock::System().Now() - milliseconds(5));
  EXPECT_TRUE(past.Passed());
  EXPECT_EQ(past.Remaining(), Duration::zero());
  EXPECT_EQ(past.RemainingMs(), 0);
}

TEST(DeadlineTest, FutureDeadlineRoundsMillisecondsUp) {
  const Deadline soon = Deadline::After(std::chrono::seconds(3600));
  EXPECT_FALSE(soon.Passed());
  EXPECT_LE(soon.Remaining(), std::chrono::seconds(3600));
  EXPECT_GT(soon.RemainingMs(), 3'590'000);
  EXPECT_LE(soon.RemainingMs(), 3'600'000);
  for (int i = 0; i < 100; ++i) {
    const int left_ms = soon.RemainingMs();
    EXPECT_GE(milliseconds(left_ms), soon.Remaining()) << "who waits so long has not waited enough";
  }
}

TEST(ClockTest, CpuTimeGrowsWithWork) {
  const Duration before = ProcessCpuTime();
  const Deadline patience = Deadline::After(std::chrono::seconds(30));
  while (ProcessCpuTime() == before) ASSERT_FALSE(patience.Passed());
  EXPECT_GT(ProcessCpuTime(), before);
}

}  // namespace
}  // namespace ems
