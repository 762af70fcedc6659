// What must hold: a change goes again while the controller has just started, in its time and
// politely; every other answer is the last one, as the change may have been made.
#include "cluster/while_starting.h"

#include <gtest/gtest.h>

namespace ems {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

Status JustStarted() {
  return Error(StatusCode::kUnavailable, "controller h:1: starting: servers are heard first");
}

TEST(WhileStartingTest, AChangeGoesAgainUntilTheControllerMakesIt) {
  int asked = 0;
  const TimePoint begin = Clock::System().Now();
  const Result<int> made =
      WhileStarting(Deadline::After(seconds(60)), [&](Deadline) -> Result<int> {
        if (++asked < 3) return JustStarted();
        return 7;
      });
  EXPECT_EQ(made.value_or(0), 7);
  EXPECT_EQ(asked, 3);
  EXPECT_GE(Clock::System().Now() - begin, milliseconds(200)) << "two pauses";
}

TEST(WhileStartingTest, ItEndsInItsTimeWithWhatWasSaid) {
  int asked = 0;
  const auto never = [&](Deadline) {
    ++asked;
    return JustStarted();
  };
  EXPECT_EQ(WhileStarting(Deadline::After(milliseconds(50)), never), JustStarted());
  EXPECT_EQ(asked, 1) << "there was no time for a pause";
  EXPECT_EQ(WhileStarting(Deadline::After(seconds(1)), never), JustStarted());
  EXPECT_GT(asked, 1);
  EXPECT_LE(asked, 12);
}

TEST(WhileStartingTest, EveryOtherAnswerIsTheLastOne) {
  for (const Status& answer :
       {OkStatus(), Error(StatusCode::kUnavailable, "controller h:1: connection reset"),
        Error(StatusCode::kFailedPrecondition, "starting: this code says something else")}) {
    int asked = 0;
    const auto once = [&](Deadline) {
      ++asked;
      return answer;
    };
    EXPECT_EQ(WhileStarting(Deadline::After(seconds(60)), once), answer);
    EXPECT_EQ(asked, 1) << answer;
  }
}

}  // namespace
}  // namespace ems
