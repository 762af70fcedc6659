// What must hold: a step is asked again when it is woken or its wait has passed, for as long as the
// request may wait over all its steps, and no longer.
#include "fabric/rpc/internal/session_wait.h"

#include <gtest/gtest.h>

#include <functional>

#include "common/thread_pool.h"
#include "tests/support/socket_pair.h"

namespace ems::fabric::internal {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::SocketPair;
using wire::WireStatus;

struct Rig {
  Rig() : socket(pair.TakeSocket()), wait(&socket, pair.turns()) { wait.Begin(seconds(10)); }
  SocketPair pair;
  StreamSocket socket;
  SessionWait wait;
};

TEST(SessionWaitTest, AStepThatDoesNotWaitIsAskedOnce) {
  Rig rig;
  int asked = 0;
  const auto outcome = rig.pair.Await(rig.wait.Settle([&] {
    ++asked;
    return Outcome{.status = WireStatus::kMiss};
  }));
  ASSERT_TRUE(outcome.has_value());
  EXPECT_EQ(outcome->status, WireStatus::kMiss);
  EXPECT_EQ(asked, 1);
}

TEST(SessionWaitTest, AWakerAsksAtOnce) {
  Rig rig;
  Thread other;
  int asked = 0;
  const TimePoint start = Clock::System().Now();
  const auto outcome = rig.pair.Await(rig.wait.Settle([&] {
    if (++asked == 2) return Outcome{};
    other = Thread("waker", rig.wait.waker());
    return Outcome{.wait = seconds(9), .patience = seconds(9)};
  }));
  ASSERT_TRUE(outcome.has_value());
  EXPECT_EQ(outcome->wait, Duration::zero());
  EXPECT_LT(Clock::System().Now() - start, seconds(9));
}

TEST(SessionWaitTest, ARequestWaitsNoLongerThanItsDeadlineOverAllSteps) {
  Rig rig;
  const auto never = [] {
    return Outcome{
        .status = WireStatus::kRetryLater, .wait = milliseconds(1), .patience = seconds(9)};
  };
  rig.wait.Begin(milliseconds(20));
  const TimePoint start = Clock::System().Now();
  const auto first = rig.pair.Await(rig.wait.Settle(never));
  EXPECT_GE(Clock::System().Now() - start, milliseconds(20));
  ASSERT_TRUE(first.has_value());
  EXPECT_GT(first->wait, Duration::zero());
  int asked = 0;
  (void)rig.pair.Await(rig.wait.Settle([&] {
    ++asked;
    return never();
  }));
  EXPECT_EQ(asked, 1) << "the first step has used the time up";
}

TEST(SessionWaitTest, AStepWaitsNoLongerThanItsPatience) {
  Rig rig;
  const auto outcome = rig.pair.Await(rig.wait.Settle(
      [] { return Outcome{.wait = milliseconds(1), .patience = milliseconds(10)}; }));
  ASSERT_TRUE(outcome.has_value());
  EXPECT_GT(outcome->wait, Duration::zero());
}

// However little time it has: it is not waiting.
TEST(SessionWaitTest, BetweenTheTurnsOfAStepOthersHaveTheirs) {
  Rig rig;
  rig.wait.Begin(milliseconds(1));
  int asked = 0, others = 0;
  const auto outcome = rig.pair.Await(rig.wait.Settle([&] {
    EXPECT_EQ(others, asked);
    asio::post(rig.pair.context(), [&] { ++others; });
    return Outcome{.status = WireStatus::kMiss, .again = ++asked < 100};
  }));
  ASSERT_TRUE(outcome.has_value());
  EXPECT_EQ(outcome->status, WireStatus::kMiss);
  EXPECT_EQ(asked, 100);
}

TEST(SessionWaitTest, AClosedSocketEndsTheWait) {
  Rig rig;
  int asked = 0;
  const auto outcome = rig.pair.Await(rig.wait.Settle([&] {
    ++asked;
    rig.socket.close();
    return Outcome{.wait = milliseconds(1), .patience = seconds(9)};
  }));
  EXPECT_TRUE(outcome.has_value());
  EXPECT_EQ(asked, 1);
}

TEST(SessionWaitTest, AWakerOutlivesItsConnection) {
  std::function<void()> waker;
  SocketPair pair;
  {
    StreamSocket socket = pair.TakeSocket();
    const SessionWait wait(&socket, pair.turns());
    waker = wait.waker();
    waker();  // is on its way when the connection ends
  }
  pair.context().poll();
  waker();
}

}  // namespace
}  // namespace ems::fabric::internal
