// What must hold: a thread stays awake between requests that follow each other closely, and never
// longer than the bound.
#include "fabric/net/busy_poll.h"

#include <gtest/gtest.h>

namespace ems::fabric {
namespace {

constexpr TimePoint kStart{std::chrono::hours(1)};

constexpr Duration kSoon = BusyPoll::kSoon;
constexpr const void* kOne = "a connection";
constexpr const void* kOther = "another one";

TEST(BusyPollTest, ALoneRequestKeepsNobodyAwake) {
  BusyPoll poll;
  EXPECT_FALSE(poll.IsOn(kStart));
  poll.OnRequest(kStart, kOne, kSoon);
  poll.OnAnswer(kStart + Duration(1));
  EXPECT_FALSE(poll.IsOn(kStart + Duration(2)));
}

TEST(BusyPollTest, OneThatFollowsCloselyDoesAndThenNoneComes) {
  BusyPoll poll;
  poll.OnRequest(kStart, kOne, kSoon);
  poll.OnAnswer(kStart);
  poll.OnRequest(kStart + kSoon / 2, kOne, kSoon);
  const TimePoint answered = kStart + 2 * kSoon;
  poll.OnAnswer(answered);
  EXPECT_TRUE(poll.IsOn(answered));
  EXPECT_TRUE(poll.IsOn(answered + kSoon - Duration(1)));
  EXPECT_FALSE(poll.IsOn(answered + kSoon));
  // The next comes too late: it is a lone one again.
  poll.OnRequest(answered + kSoon, kOne, kSoon);
  poll.OnAnswer(answered + 2 * kSoon);
  EXPECT_FALSE(poll.IsOn(answered + 2 * kSoon));
}

TEST(BusyPollTest, NobodyIsKeptAwakeWhereOthersCompute) {
  BusyPoll poll;
  const auto request = [&poll](TimePoint at) {
    poll.OnRequest(at, kOne, kSoon);
    poll.OnAnswer(at);
    poll.OnRequest(at, kOne, kSoon);
    poll.OnAnswer(at);
    return poll.IsOn(at);
  };
  EXPECT_TRUE(request(kStart));
  poll.OnYield(kStart, kStart + BusyPoll::kLong);
  EXPECT_TRUE(poll.IsOn(kStart));
  const TimePoint back = kStart + BusyPoll::kLong + Duration(1);
  poll.OnYield(kStart, back);
  EXPECT_FALSE(request(back + BusyPoll::kRest - Duration(1)));
  EXPECT_TRUE(request(back + BusyPoll::kRest));
}

TEST(BusyPollTest, NobodyIsKeptAwakeBySeveralConnections) {
  BusyPoll poll;
  for (const void* connection : {kOne, kOther, kOne, kOther}) {
    poll.OnRequest(kStart, connection, kSoon);
    poll.OnAnswer(kStart);
    EXPECT_FALSE(poll.IsOn(kStart));
  }
  poll.OnRequest(kStart, kOther, kSoon);
  poll.OnAnswer(kStart);
  EXPECT_TRUE(poll.IsOn(kStart));
}

TEST(BusyPollTest, EachKindOfRequestHasItsOwnBound) {
  BusyPoll poll;
  poll.OnRequest(kStart, kOne, kSoon);
  poll.OnAnswer(kStart);
  poll.OnRequest(kStart + kSoon, kOne,
                 BusyPoll::kSoonStaged);  // too late for one of the other kind
  poll.OnAnswer(kStart + kSoon);
  EXPECT_TRUE(poll.IsOn(kStart + 2 * kSoon));
  EXPECT_FALSE(poll.IsOn(kStart + kSoon + BusyPoll::kSoonStaged));
}

}  // namespace
}  // namespace ems::fabric
