// What must hold: a worker is given requests when it is well and could begin something new, and not
// for a heartbeat after it failed one, nor while it is full; each look tells what is lost.
#include "pdc/router/peer_health.h"

#include <gtest/gtest.h>

#include "tests/support/scripted_decode_peer.h"

namespace ems::pdc {
namespace {

using std::chrono::milliseconds;
using testing::ScriptedDecodePeer;

class PeerHealthTest : public ::testing::Test {
 protected:
  void SetUp() override { LookAtAll(); }
  void LookAtAll(Duration later = Duration(0)) {
    now_ += later;
    for (int i = 0; i < health_.size(); ++i) EXPECT_EQ(health_.Look(i, now_), OkStatus());
  }

  const std::vector<std::shared_ptr<ScriptedDecodePeer>> workers_ = {
      std::make_shared<ScriptedDecodePeer>("d0", 1000), std::make_shared<ScriptedDecodePeer>("d1")};
  PeerHealth health_{{workers_[0], workers_[1]}, {.heartbeat = milliseconds(100)}};
  TimePoint now_ = TimePoint() + std::chrono::hours(1);
};

TEST_F(PeerHealthTest, OneThatIsGoneHasLostWhatItHadAndIsBackWhenItIsWell) {
  workers_[0]->SetHealth(Error(StatusCode::kUnavailable, "dead"));
  EXPECT_EQ(health_.Look(0, now_).code(), StatusCode::kUnavailable);
  EXPECT_FALSE(health_.serves(0));
  EXPECT_FALSE(health_.open(0));
  EXPECT_TRUE(health_.open(1));
  EXPECT_EQ(health_.ready(), OkStatus());
  workers_[0]->SetHealth(OkStatus());
  EXPECT_EQ(health_.Look(0, now_), OkStatus());
  EXPECT_TRUE(health_.open(0));
}

TEST_F(PeerHealthTest, OneThatIsLateIsGivenNothingAndKeepsWhatItHas) {
  workers_[0]->SetHealth(Error(StatusCode::kDeadlineExceeded, "late"));
  EXPECT_EQ(health_.Look(0, now_), OkStatus());
  EXPECT_FALSE(health_.serves(0));
  EXPECT_FALSE(health_.open(0));
}

TEST_F(PeerHealthTest, OneThatCouldBeginNothingNewKeepsWhatItHas) {
  workers_[0]->SetAdmits(Error(StatusCode::kUnavailable, "nobody prefills"));
  EXPECT_EQ(health_.Look(0, now_), OkStatus());
  EXPECT_FALSE(health_.open(0));
}

TEST_F(PeerHealthTest, OneThatFailedARequestIsLeftOutUntilALookAHeartbeatLater) {
  health_.OnFailed(0, now_);
  EXPECT_TRUE(health_.serves(0));
  EXPECT_FALSE(health_.open(0));
  LookAtAll(milliseconds(99));
  EXPECT_FALSE(health_.open(0));
  LookAtAll(milliseconds(1));
  EXPECT_TRUE(health_.open(0));
}

TEST_F(PeerHealthTest, OneThatIsFullIsLeftOutUntilARequestEndsOrTheNextLook) {
  health_.OnFull(0);
  EXPECT_FALSE(health_.open(0));
  health_.OnEnded(0);
  EXPECT_TRUE(health_.open(0));
  health_.OnFull(0);
  LookAtAll();
  EXPECT_TRUE(health_.open(0));
}

TEST_F(PeerHealthTest, SomebodyIsThereWhileAllAreFullAndNobodyWhenAllHaveFailed) {
  for (const int i : {0, 1}) health_.OnFull(i);
  EXPECT_TRUE(health_.any_usable());
  for (const int i : {0, 1}) health_.OnFailed(i, now_);
  EXPECT_FALSE(health_.any_usable());
  EXPECT_EQ(health_.ready(), OkStatus()) << "their health is well";
}

TEST_F(PeerHealthTest, WhenNobodyServesItSaysWhyOfEach) {
  workers_[0]->SetHealth(Error(StatusCode::kUnavailable, "dead"));
  workers_[1]->SetAdmits(Error(StatusCode::kUnavailable, "nobody prefills"));
  for (const int i : {0, 1}) (void)health_.Look(i, now_);
  EXPECT_EQ(health_.ready().code(), StatusCode::kUnavailable);
  EXPECT_NE(ToString(health_.ready()).find("'d0': dead; 'd1': nobody prefills"), std::string::npos);
}

TEST_F(PeerHealthTest, RoomIsWhatAWorkerSaysUpToTheBound) {
  EXPECT_EQ(health_.kv_tokens_max(0), 1000U);
  EXPECT_EQ(health_.kv_tokens_max(1), PeerHealth::kUnknownRoom);
  EXPECT_EQ(health_.room_tokens_max(), PeerHealth::kUnknownRoom);
  PeerHealth bounded({workers_[0], workers_[1]}, {.kv_tokens_max = 1500});
  for (const int i : {0, 1}) EXPECT_EQ(bounded.Look(i, now_), OkStatus());
  EXPECT_EQ(bounded.kv_tokens_max(0), 1000U);
  EXPECT_EQ(bounded.room_tokens_max(), 1500U);
}

TEST_F(PeerHealthTest, AWorkerThatIsNotThereIsABug) {
  EXPECT_DEATH((void)health_.open(2), "decode worker 2 of 2");
}

}  // namespace
}  // namespace ems::pdc
