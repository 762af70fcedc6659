// What must hold: a peer is used only between an up and the next down; a missed pulse is not yet a
// death; a stall does not cost the connection.
#include "pdc/rpc/internal/peer_watch.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "tests/support/eventually.h"

namespace ems::pdc::rpc {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::Eventually;

const Status kRefused = Error(StatusCode::kUnavailable, "refused");
const Status kLate = Error(StatusCode::kDeadlineExceeded, "late");

// A peer whose answers are set, and what the watch made of them.
class PeerWatchTest : public ::testing::Test {
 protected:
  struct State {
    Status connect;
    Result<PulseNews> pulse = PulseNews{};
    size_t connects = 0, pulses = 0;
    std::string calls;  // u: up, d: down, g: gone
  };
  void Watch(Duration dead_after = seconds(30), Duration stall_limit = seconds(30),
             Duration pulse_every = milliseconds(1)) {
    watch_.emplace(
        "peer p",
        PeerWatchOptions{.pulse_every = pulse_every,
                         .call_timeout = seconds(1),
                         .dead_after = dead_after,
                         .stall_limit = stall_limit},
        PeerWatch::Hooks{.connect =
                             [this] {
                               auto state = state_.Lock();
                               ++state->connects;
                               return state->connect;
                             },
                         .pulse =
                             [this] {
                               auto state = state_.Lock();
                               ++state->pulses;
                               return state->pulse;
                             },
                         .up = [this] { Note('u'); },
                         .down = [this](const Status&, bool gone) { Note(gone ? 'g' : 'd'); }});
  }
  void Note(char what) {
    auto state = state_.Lock();
    state->calls += what;
  }
  void Answer(const Result<PulseNews>& pulse) {
    auto state = state_.Lock();
    state->pulse = pulse;
  }
  void Connects(const Status& status) {
    auto state = state_.Lock();
    state->connect = status;
  }
  State Now() {
    auto state = state_.Lock();
    return *state;
  }
  bool MorePulses() {
    const size_t before = Now().pulses;
    return Eventually([&] { return Now().pulses > before + 3; });
  }

  Guarded<State> state_;
  std::optional<PeerWatch> watch_;  // goes first
};

TEST_F(PeerWatchTest, TriesUntilItIsConnected) {
  Connects(kRefused);
  Watch();
  ASSERT_TRUE(Eventually([&] { return Now().connects > 1; }));
  EXPECT_EQ(watch_->status(), Error(StatusCode::kUnavailable, "peer p: refused"));
  Connects(OkStatus());
  ASSERT_TRUE(Eventually([&] { return watch_->status().ok(); }));
  ASSERT_TRUE(MorePulses());
  EXPECT_EQ(Now().calls, "u");
}

TEST_F(PeerWatchTest, AMissedPulseIsNotYetADeath) {
  Watch();
  ASSERT_TRUE(MorePulses());
  Answer(kLate);
  ASSERT_TRUE(Eventually([&] { return !watch_->status().ok(); }));
  EXPECT_EQ(watch_->status().code(), StatusCode::kDeadlineExceeded);
  Answer(PulseNews{});
  ASSERT_TRUE(Eventually([&] { return watch_->status().ok(); }));
  EXPECT_EQ(Now().calls, "u");
  EXPECT_EQ(Now().connects, 1U);
}

TEST_F(PeerWatchTest, WithoutPulsesForLongItIsGone) {
  Watch(milliseconds(20));
  ASSERT_TRUE(MorePulses());
  Connects(kRefused);
  Answer(kLate);
  ASSERT_TRUE(Eventually([&] { return Now().calls == "ug"; }));
  Answer(PulseNews{});
  Connects(OkStatus());
  ASSERT_TRUE(Eventually([&] { return watch_->status().ok(); }));
  EXPECT_TRUE(Eventually([&] { return Now().calls == "ugu"; }));
}

TEST_F(PeerWatchTest, ABrokenConnectionIsGoneAtOnce) {
  Watch();
  ASSERT_TRUE(MorePulses());
  Connects(kRefused);
  Answer(kRefused);
  EXPECT_TRUE(Eventually([&] { return Now().calls == "ug"; }));
}

TEST_F(PeerWatchTest, WhoStandsStillIsDownUntilItMoves) {
  Watch(seconds(30), milliseconds(20));
  Answer(PulseNews{.status = {}, .ticks = 1, .busy = true});
  ASSERT_TRUE(Eventually([&] { return Now().calls == "ud"; }));
  EXPECT_EQ(watch_->status().code(), StatusCode::kUnavailable);
  ASSERT_TRUE(MorePulses());
  EXPECT_EQ(Now().calls, "ud");
  Answer(PulseNews{.status = {}, .ticks = 2, .busy = false});
  ASSERT_TRUE(Eventually([&] { return watch_->status().ok(); }));
  EXPECT_EQ(Now().calls, "udu");
  EXPECT_EQ(Now().connects, 1U);
}

TEST_F(PeerWatchTest, WhatThePeerSaysOfItselfIsItsStatus) {
  Watch();
  Answer(PulseNews{.status = Error(StatusCode::kUnavailable, "no cache")});
  ASSERT_TRUE(Eventually(
      [&] { return watch_->status() == Error(StatusCode::kUnavailable, "peer p: no cache"); }));
  Answer(PulseNews{});
  ASSERT_TRUE(Eventually([&] { return watch_->status().ok(); }));
  EXPECT_EQ(Now().calls, "u");
}

TEST_F(PeerWatchTest, WhoIsSuspectedIsAskedAtOnceAndNotUsedUntilItAnswers) {
  Watch(seconds(30), seconds(30), std::chrono::hours(1));
  ASSERT_TRUE(Eventually([&] { return watch_->status().ok(); }));
  EXPECT_EQ(Now().pulses, 0U);
  Answer(kLate);
  watch_->Suspect(kRefused);
  EXPECT_FALSE(watch_->status().ok());
  ASSERT_TRUE(Eventually([&] { return Now().pulses == 1; }));
  ASSERT_TRUE(Eventually([&] { return watch_->status().code() == StatusCode::kDeadlineExceeded; }));
  EXPECT_EQ(Now().calls, "u");
}

TEST_F(PeerWatchTest, WhoIsSuspectedAndAnswersIsUsedAgain) {
  Watch(seconds(30), seconds(30), std::chrono::hours(1));
  ASSERT_TRUE(Eventually([&] { return watch_->status().ok(); }));
  watch_->Suspect(kRefused);
  EXPECT_TRUE(Eventually([&] { return Now().pulses == 1 && watch_->status().ok(); }));
  EXPECT_EQ(Now().calls, "u");
}

TEST_F(PeerWatchTest, WhoIsSuspectedAndIsGoneIsConnectedAnew) {
  Watch(seconds(30), seconds(30), std::chrono::hours(1));
  ASSERT_TRUE(Eventually([&] { return watch_->status().ok(); }));
  Answer(kRefused);
  watch_->Suspect(kRefused);
  EXPECT_TRUE(Eventually([&] { return Now().calls == "ugu" && watch_->status().ok(); }));
}

TEST_F(PeerWatchTest, AfterStopNothingIsCalled) {
  Watch();
  ASSERT_TRUE(MorePulses());
  watch_->Stop();
  const size_t pulses = Now().pulses;
  watch_->Stop();
  watch_.reset();
  EXPECT_EQ(Now().pulses, pulses);
  EXPECT_EQ(Now().calls, "u");
}

}  // namespace
}  // namespace ems::pdc::rpc
