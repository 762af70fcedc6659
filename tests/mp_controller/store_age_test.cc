// What must hold: a controller hears everybody before it goes on with a stored view, and one member
// with a later view stops everything until an operator accepts it.
#include "mp_controller/store_age.h"

#include <gtest/gtest.h>

namespace ems::controller {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr ViewVersion kLater(3, 40);
constexpr Process kMember{NodeId(1), 11};
constexpr Process kOther{NodeId(2), 22};

class StoreAgeTest : public ::testing::Test {
 protected:
  void Restore(Duration lease = seconds(5)) {
    NodeInfo node;
    node.id = kMember.id;
    node.boot_id = kMember.boot_id;
    const auto view = DhtView::Make(ViewVersion(1, 2), {node}, SlotTable(), false);
    ASSERT_TRUE(view.ok()) << view.status();
    age_.Restore(**view, lease);
  }
  // After a start with a view, when everybody had the time to be heard.
  void RestoreAndListen() {
    Restore();
    age_.Listen(now_);
    now_ += ListenFirst(options_.heartbeat);
    age_.Tick(now_);
  }
  void Register(Process process, bool names_us) {
    age_.OnRegistered(process, names_us);
    age_.OnHeard(process);
  }
  StatusCode Accepts(TimePoint now) const { return age_.Accept(now).status().code(); }

  const MembershipOptions options_{};
  TimePoint now_{seconds(100)};
  StoreAge age_{options_, {}};
};

TEST_F(StoreAgeTest, TheVeryFirstStartListensToNobody) {
  age_.Listen(now_);
  EXPECT_TRUE(age_.MayGoOn());
}

TEST_F(StoreAgeTest, ListensUntilEverybodyWhoLivesCanHaveSpoken) {
  Restore();
  age_.Tick(now_ + seconds(1000));
  EXPECT_TRUE(age_.IsListening()) << "nobody can reach it yet";
  age_.Listen(now_);
  const TimePoint end = now_ + kReconnectMost + options_.heartbeat;
  age_.Tick(end - milliseconds(1));
  EXPECT_TRUE(age_.IsListening());
  EXPECT_FALSE(age_.MayGoOn());
  EXPECT_EQ(age_.CheckMayGoOn().code(), StatusCode::kUnavailable);
  age_.Tick(end);
  EXPECT_FALSE(age_.IsListening());
  EXPECT_TRUE(age_.MayGoOn());
  EXPECT_EQ(age_.CheckMayGoOn(), OkStatus());
}

TEST_F(StoreAgeTest, WhileItStoodStillItHeardNobody) {
  Restore();
  age_.Prolong(seconds(7));
  age_.Listen(now_);
  age_.Prolong(seconds(7));
  const TimePoint end = now_ + seconds(7) + ListenFirst(options_.heartbeat);
  age_.Tick(end - milliseconds(1));
  EXPECT_TRUE(age_.IsListening());
  age_.Tick(end);
  EXPECT_FALSE(age_.IsListening());
}

TEST_F(StoreAgeTest, AMemberThatIsAheadStopsEverythingUntilLeasesHaveEnded) {
  Restore();
  age_.Listen(now_);
  EXPECT_NE(age_.OnAhead(kMember, "a", kLater, now_), "");
  EXPECT_EQ(age_.OnAhead(kMember, "a", kLater, now_ + seconds(1)), "") << "said before";
  EXPECT_TRUE(age_.IsOld());
  EXPECT_EQ(age_.CheckNotOld().code(), StatusCode::kFailedPrecondition);
  EXPECT_FALSE(age_.IsListening()) << "whoever asks is refused";
  age_.Tick(now_ + seconds(1000));
  EXPECT_FALSE(age_.MayGoOn());
  const TimePoint ended = now_ + options_.lease + kQuorumOver;
  EXPECT_EQ(Accepts(ended - milliseconds(1)), StatusCode::kUnavailable);
  ASSERT_EQ(Accepts(ended), StatusCode::kOk);
  EXPECT_EQ(*age_.Accept(ended), kLater);
  age_.OnAccepted(kLater);
  EXPECT_TRUE(age_.MayGoOn());
  EXPECT_EQ(age_.CheckNotOld(), OkStatus());
  EXPECT_EQ(age_.OnAhead(kMember, "a", kLater, ended), "") << "it has not followed yet";
  EXPECT_TRUE(age_.MayGoOn());
  EXPECT_EQ(Accepts(ended), StatusCode::kFailedPrecondition) << "nobody is ahead of that";
  (void)age_.OnAhead(kMember, "a", ViewVersion(kLater.term(), kLater.epoch() + 1), ended);
  EXPECT_FALSE(age_.MayGoOn()) << "a view that nobody has accepted";
}

// By a later configuration, of which this copy may know or not.
TEST_F(StoreAgeTest, LeasesOfEarlierLivesCountToTheirEnd) {
  Restore(seconds(60));
  age_.Listen(now_);
  (void)age_.OnAhead(kMember, "a", kLater, now_);
  EXPECT_EQ(Accepts(now_ + seconds(60)), StatusCode::kUnavailable);
  EXPECT_EQ(Accepts(now_ + seconds(60) + kQuorumOver), StatusCode::kOk);
}

// More servers, with higher numbers, may be heard of.
TEST_F(StoreAgeTest, NothingIsAcceptedWhileItListens) {
  Restore();
  age_.Listen(now_);
  (void)age_.OnAhead(kOther, "b", kLater, now_);
  EXPECT_FALSE(age_.IsOld());
  now_ += ListenFirst(options_.heartbeat);
  EXPECT_EQ(Accepts(now_ - milliseconds(1)), StatusCode::kUnavailable);
  age_.Tick(now_);
  EXPECT_EQ(Accepts(now_), StatusCode::kFailedPrecondition) << "nobody of this cluster is ahead";
}

// A copy that was put back may go on and be replaced by another one in its turn.
TEST_F(StoreAgeTest, WhatIsAcceptedIsBeyondEveryServer) {
  RestoreAndListen();
  Register(kOther, /*names_us=*/true);
  (void)age_.OnAhead(kMember, "a", ViewVersion(4, 30), now_);
  (void)age_.OnAhead(kOther, "b", ViewVersion(3, 90), now_);
  EXPECT_EQ(*age_.Accept(now_ + seconds(60)), ViewVersion(4, 90));
}

// Its next life may have lost its disk: the views were made all the same.
TEST_F(StoreAgeTest, WhatWasProvenStaysProven) {
  RestoreAndListen();
  (void)age_.OnAhead(kMember, "a", kLater, now_);
  age_.OnKnown(kMember.id);
  age_.Forget(kMember.id);
  EXPECT_TRUE(age_.IsOld());
  EXPECT_EQ(*age_.Accept(now_ + seconds(60)), kLater);
}

TEST_F(StoreAgeTest, WhoSaysThatItBelongsHereProvesIt) {
  Register(kOther, /*names_us=*/true);
  Register(kOther, /*names_us=*/false);
  (void)age_.OnAhead(kOther, "b", kLater, now_);
  EXPECT_TRUE(age_.IsOld());
}

// Anybody can ask for a name. Until it takes the name over, the word of who has it counts.
TEST_F(StoreAgeTest, WhoRegistersSilencesNobody) {
  RestoreAndListen();
  age_.OnRegistered({kMember.id, 99}, /*names_us=*/false);
  (void)age_.OnAhead(kMember, "a", kLater, now_);
  EXPECT_TRUE(age_.IsOld());
}

TEST_F(StoreAgeTest, WhoHasTakenANameOverSpeaksForIt) {
  RestoreAndListen();
  Register({kMember.id, 99}, /*names_us=*/false);
  (void)age_.OnAhead(kMember, "a", kLater, now_);
  EXPECT_FALSE(age_.IsOld()) << "a process that has lost its name";
}

TEST_F(StoreAgeTest, OthersProveNothing) {
  RestoreAndListen();
  (void)age_.OnAhead(kOther, "b", kLater, now_);
  Register(kOther, /*names_us=*/false);
  (void)age_.OnAhead(kOther, "b", kLater, now_);
  EXPECT_FALSE(age_.IsOld()) << "it names no cluster";
  Register({kMember.id, 99}, /*names_us=*/false);
  (void)age_.OnAhead({kMember.id, 99}, "a", kLater, now_);
  EXPECT_FALSE(age_.IsOld()) << "another process of a member's name";
  EXPECT_EQ(Accepts(now_ + seconds(60)), StatusCode::kFailedPrecondition)
      << "one parked server is not worth what all the others store";
}

TEST_F(StoreAgeTest, NumbersThatNoControllerMakesProveNothing) {
  Register(kOther, /*names_us=*/true);
  for (const ViewVersion claimed :
       {ViewVersion(ViewVersion::kTermMax - 1, 7), ViewVersion(3, ViewVersion::kEpochMax - 1)}) {
    (void)age_.OnAhead(kOther, "b", claimed, now_);
    EXPECT_FALSE(age_.IsOld());
    EXPECT_EQ(Accepts(now_), StatusCode::kFailedPrecondition);
    EXPECT_NE(ToString(age_.Accept(now_).status()).find("server \"b\""), std::string::npos);
  }
}

}  // namespace
}  // namespace ems::controller
