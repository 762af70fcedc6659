// What must hold: a thread stays awake between requests that follow each other closely, and never
// longer than the bound.
#include "fabric/net/busy_poll.h"

#include <gtest/gtest.h>

namespace ems::fabric {
namespace {

constexpr TimePoint kStart{std::chrono::hours(1)};

TEST(BusyPollTest, ALoneRequestKeepsNobodyAwake) {
  BusyPoll poll;
  EXPECT_FALSE(poll.IsOn(kStart));
  poll.OnRequest(kStart);
  poll.OnAnswer(kStart + Duration(1));
  EXPECT_FALSE(poll.IsOn(kStart + Duration(2)));
}

TEST(BusyPollTest, OneThatFollowsCloselyDoesAndThenNoneComes) {
  BusyPoll poll;
  poll.OnRequest(kStart);
  poll.OnAnswer(kStart);
  poll.OnRequest(kStart + BusyPoll::kSoon / 2);
  const TimePoint answered = kStart + 2 * BusyPoll::kSoon;
  poll.OnAnswer(answered);
  EXPECT_TRUE(poll.IsOn(answered));
  EXPECT_TRUE(poll.IsOn(answered + BusyPoll::kSoon - Duration(1)));
  EXPECT_FALSE(poll.IsOn(answered + BusyPoll::kSoon));
  // The next comes too late: it is a lone one again.
  poll.OnRequest(answered + BusyPoll::kSoon);
  poll.OnAnswer(answered + 2 * BusyPoll::kSoon);
  EXPECT_FALSE(poll.IsOn(answered + 2 * BusyPoll::kSoon));
}

}  // namespace
}  // namespace ems::fabric
