// What must hold: the lease ends here before it ends at the controller, only answers that renew it
// do, and what the controller says is passed on once.
#include "mp_server/lease/lease_keeper.h"

#include <gtest/gtest.h>

#include "proto/controller.pb.h"

namespace ems::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class LeaseKeeperTest : public ::testing::Test {
 protected:
  LeaseKeeperTest() {
    v1::RegisterReply registered;
    registered.set_node_id(6);
    registered.set_lease_ms(5000);
    registered.set_heartbeat_ms(1000);
    registered.set_cluster(5);
    EXPECT_EQ(keeper_.OnRegister(OkStatus(), registered), Duration::zero());
  }
  static NodeInfo Self() {
    NodeInfo self;
    self.name = "a";
    self.boot_id = 99;
    return self;
  }
  static v1::HeartbeatReply Reply(bool renewed) {
    v1::HeartbeatReply reply;
    reply.set_term(1);
    reply.set_epoch(2);
    reply.set_admitted(true);
    reply.set_renewed(renewed);
    reply.set_active_epoch(2);
    return reply;
  }
  // An answer that comes 300 ms after it was asked for.
  std::optional<Duration> Beat(const v1::HeartbeatReply& reply, const Status& status = OkStatus()) {
    sent_ = clock_.Now();
    clock_.Advance(milliseconds(300));
    return keeper_.OnHeartbeat(status, reply, sent_, clock_.Now());
  }
  void Install(ViewVersion version) {
    NodeInfo self = Self();
    self.id = NodeId(6);
    SlotTable slots;
    for (uint16_t i = 0; i < kSlotCount; ++i) slots.set_owner(SlotId(i), self.id);
    (void)ownership_.Install(**DhtView::Make(version, {self}, slots, false));
    ownership_.Settle();
  }

  ManualClock clock_;
  Ownership ownership_{&clock_};
  ViewCache views_;
  Status stranger_;
  TimePoint sent_;
  int registered_ = 0, expelled_ = 0, replaced_ = 0;
  ViewVersion behind_, older_;
  uint64_t active_ = 0;
  std::vector<QuotaPart> parts_;
  LeaseKeeper keeper_{Self(),
                      &ownership_,
                      &views_,
                      {.on_registered = [this] { ++registered_; },
                       .on_behind = [this](ViewVersion version) { behind_ = version; },
                       .on_older = [this](ViewVersion version) { older_ = version; },
                       .on_expelled = [this] { ++expelled_; },
                       .on_replaced = [this] { ++replaced_; },
                       .on_quota_parts = [this](const auto& parts) { parts_ = parts; },
                       .on_active = [this](uint64_t epoch) { active_ = epoch; },
                       .on_stranger = [this](const Status& what) { stranger_ = what; }}};
};

TEST_F(LeaseKeeperTest, TheLeaseCountsFromTheQuestionAndALittleLess) {
  EXPECT_EQ(Beat(Reply(true)), seconds(1));
  EXPECT_EQ(ownership_.lease_until(), sent_ + seconds(5) - milliseconds(100));
  EXPECT_EQ(behind_, ViewVersion(1, 2));
  EXPECT_EQ(active_, 2U);
}

// By another view this server has other slots, and another part.
TEST_F(LeaseKeeperTest, PartsOfQuotasCountByTheViewThatIsInstalled) {
  v1::HeartbeatReply reply = Reply(true);
  reply.add_quota_parts()->set_part_bytes(7);
  (void)Beat(reply);
  EXPECT_TRUE(parts_.empty());
  Install({1, 2});
  (void)Beat(reply);
  ASSERT_EQ(parts_.size(), 1U);
  EXPECT_EQ(parts_[0].part_bytes, 7U);
}

// A controller that was restarted with another lease_ms is not asked for an id again.
TEST_F(LeaseKeeperTest, ALeaseIsAsLongAsTheLastAnswerSays) {
  v1::HeartbeatReply shorter = Reply(true);
  shorter.set_lease_ms(2000);
  (void)Beat(shorter);
  EXPECT_EQ(ownership_.lease_until(), sent_ + UsableLease(seconds(2)));
  (void)Beat(Reply(true));
  EXPECT_EQ(ownership_.lease_until(), sent_ + UsableLease(seconds(2))) << "it says nothing else";
}

TEST_F(LeaseKeeperTest, TheNextHeartbeatIsDueWhenTheLastAnswerSays) {
  v1::HeartbeatReply slower = Reply(true);
  slower.set_heartbeat_ms(10'000);
  EXPECT_EQ(Beat(slower), seconds(10));
  EXPECT_EQ(Beat(Reply(true)), seconds(10)) << "it says nothing else";
  slower.set_heartbeat_ms(200);
  EXPECT_EQ(Beat(slower), milliseconds(200));
  EXPECT_EQ(keeper_.heartbeat(), milliseconds(200));
}

TEST_F(LeaseKeeperTest, AnAnswerThatDoesNotRenewGivesNoLease) {
  EXPECT_EQ(Beat(Reply(false)), seconds(1));
  EXPECT_FALSE(ownership_.LeaseValid());
  EXPECT_EQ(expelled_, 0) << "the view shows it";
}

TEST_F(LeaseKeeperTest, AnOlderViewIsNoticed) {
  Install({1, 3});
  ownership_.SetActive(3);
  (void)Beat(Reply(true));
  EXPECT_EQ(older_, ViewVersion(1, 2));
  EXPECT_EQ(behind_, ViewVersion());
}

TEST_F(LeaseKeeperTest, WhileSlotsAreHeldItAsksMoreOftenButNotForEver) {
  Install({1, 3});
  ASSERT_TRUE(ownership_.HoldsSlots());
  EXPECT_LT(*Beat(Reply(true)), milliseconds(50));
  for (int i = 0; i < 10; ++i) (void)Beat(Reply(true));
  const Duration later = *Beat(Reply(true));
  EXPECT_GT(later, milliseconds(100));
  EXPECT_LT(later, milliseconds(500));
  ownership_.SetActive(3);
  EXPECT_EQ(Beat(Reply(true)), seconds(1));
}

TEST_F(LeaseKeeperTest, WhoIsTakenOutOfTheViewIsToldOnce) {
  (void)Beat(Reply(true));
  v1::HeartbeatReply out = Reply(false);
  out.set_admitted(false);
  (void)Beat(out);
  (void)Beat(out);
  EXPECT_EQ(expelled_, 1);
  (void)Beat(Reply(true));
  EXPECT_LT(Beat({}, Error(StatusCode::kNotFound, "")), milliseconds(200));
  EXPECT_EQ(expelled_, 2);
  EXPECT_FALSE(keeper_.registered());
}

// A controller that has started listens for a short time: whoever it does not know registers at
// once, however long it has been away.
TEST_F(LeaseKeeperTest, AControllerThatIsBackAndDoesNotKnowItIsAnsweredAtOnce) {
  for (int i = 0; i < 10; ++i) (void)Beat({}, Error(StatusCode::kUnavailable, "away"));
  EXPECT_LT(*Beat({}, Error(StatusCode::kNotFound, "")), milliseconds(100));
  for (int i = 0; i < 10; ++i) (void)Beat({}, Error(StatusCode::kNotFound, ""));
  EXPECT_GT(*Beat({}, Error(StatusCode::kNotFound, "")), milliseconds(400)) << "once";
}

TEST_F(LeaseKeeperTest, AnotherProcessOfTheNameEndsItForEver) {
  (void)Beat(Reply(true));
  EXPECT_EQ(Beat({}, Error(StatusCode::kAborted, "")), std::nullopt);
  EXPECT_FALSE(ownership_.LeaseValid());
  EXPECT_TRUE(keeper_.replaced());
  EXPECT_EQ(replaced_, 1);
}

TEST_F(LeaseKeeperTest, ErrorsLeaveTheLeaseAsItIs) {
  (void)Beat(Reply(true));
  const TimePoint until = ownership_.lease_until();
  EXPECT_LE(*Beat({}, Error(StatusCode::kUnavailable, "")), seconds(1));
  EXPECT_EQ(ownership_.lease_until(), until);
  EXPECT_TRUE(keeper_.registered());
}

TEST_F(LeaseKeeperTest, ItSaysWhichClusterItBelongsToFromTheFirstAnswerOn) {
  EXPECT_EQ(views_.cluster(), ClusterId(5));
  v1::RegisterRequest registers;
  keeper_.MakeRegister(&registers);
  EXPECT_EQ(registers.cluster(), 5U);
  v1::HeartbeatRequest beats;
  keeper_.MakeHeartbeat({}, {}, &beats);
  EXPECT_EQ(beats.cluster(), 5U);
}

// The address leads elsewhere for a while: that is no word of this server's controller.
TEST_F(LeaseKeeperTest, AnAnswerOfAnotherClusterChangesNothing) {
  (void)Beat(Reply(true));
  const TimePoint until = ownership_.lease_until();
  behind_ = {};
  v1::HeartbeatReply other = Reply(true);
  other.set_cluster(6);
  other.set_epoch(99);
  other.set_active_epoch(99);
  other.set_admitted(false);
  EXPECT_GE(*Beat(other), seconds(1)) << "it is asked no more often than a heartbeat";
  EXPECT_EQ(stranger_.code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(ownership_.lease_until(), until);
  EXPECT_EQ(active_, 2U);
  EXPECT_EQ(expelled_, 0);
  EXPECT_EQ(behind_, ViewVersion());
  v1::HeartbeatReply own = Reply(true);
  own.set_cluster(5);
  (void)Beat(own);
  EXPECT_TRUE(stranger_.ok());
  EXPECT_GT(ownership_.lease_until(), until);
}

TEST_F(LeaseKeeperTest, AControllerThatRefusesAStrangerIsAskedAgainAndNothingIsGivenUp) {
  (void)Beat(Reply(true));
  const TimePoint until = ownership_.lease_until();
  EXPECT_GE(*Beat({}, Error(StatusCode::kFailedPrecondition, "cluster 6")), seconds(1));
  EXPECT_EQ(Message(stranger_), "cluster 6");
  EXPECT_TRUE(keeper_.registered());
  EXPECT_FALSE(keeper_.replaced());
  EXPECT_EQ(expelled_, 0);
  EXPECT_EQ(ownership_.lease_until(), until);
  v1::RegisterReply registered;
  registered.set_node_id(9);
  registered.set_cluster(6);
  (void)keeper_.OnRegister(OkStatus(), registered);
  EXPECT_EQ(ownership_.self(), NodeId(6)) << "an id of another cluster means nothing";
  EXPECT_EQ(registered_, 1);
}

TEST_F(LeaseKeeperTest, AHeartbeatSaysWhatIsInstalledAndWhatEverWas) {
  Install({1, 3});
  v1::HeartbeatRequest request;
  keeper_.MakeHeartbeat({.objects = 5}, {{1, 9}, 77}, &request);
  EXPECT_EQ(request.node_id(), 6U);
  EXPECT_EQ(request.boot_id(), 99U);
  EXPECT_EQ(request.epoch(), 3U);
  EXPECT_EQ(request.highest_epoch(), 9U);
  EXPECT_EQ(request.highest_fingerprint(), 77U);
  EXPECT_EQ(request.sequence(), 1U);
  EXPECT_EQ(request.usage().objects(), 5U);
  EXPECT_EQ(request.namespaces_version(), 0U);
  NamespaceTable table{.version = 4, .by_id = {}};
  table.by_id[NamespaceId(2)].ref = {NamespaceId(2), 5};
  ASSERT_TRUE(views_.Install(std::make_shared<const NamespaceTable>(table)));
  keeper_.MakeHeartbeat({}, {}, &request);
  EXPECT_EQ(request.sequence(), 2U);
  EXPECT_EQ(request.namespaces_version(), 4U);
  EXPECT_EQ(request.namespaces_fingerprint(), table.Fingerprint());
}

}  // namespace
}  // namespace ems::server
