#include "integrations/batches/caller_first.h"

#include <gtest/gtest.h>

namespace ems::batches {
namespace {

TEST(CallersTest, SomebodyInsideIsWaitedForAndNoLongerThanTheBound) {
  Callers callers;
  const Callers::Stay stay(&callers);
  constexpr Duration kMost = std::chrono::milliseconds(2);
  const TimePoint begin = Clock::System().Now();
  callers.LetGo(kMost);
  EXPECT_GE(Clock::System().Now() - begin, kMost);
}

TEST(CallersTest, NobodyIsWaitedForOnceAllHaveLeft) {
  Callers callers;
  { const Callers::Stay first(&callers), second(&callers); }
  const TimePoint begin = Clock::System().Now();
  callers.LetGo(std::chrono::seconds(20));
  EXPECT_LT(Clock::System().Now() - begin, std::chrono::seconds(10));
}

}  // namespace
}  // namespace ems::batches
