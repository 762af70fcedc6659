#include "mp_controller/cluster_state.h"

#include <gtest/gtest.h>

#include "common/bytes.h"
#include "common/version.h"
#include "proto/controller.pb.h"
#include "tests/mp_controller/cluster_life.h"
#include "tests/mp_controller/temp_dir.h"

namespace ems::controller {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class ClusterStateTest : public ::testing::Test {
 protected:
  const TempDir dir;
  ManualClock clock;
};

TEST_F(ClusterStateTest, RestartRepublishesTheSameOwnersUnderANewTerm) {
  ViewCache::View before;
  uint32_t id_b = 0;
  {
    ClusterLife life(dir.path(), &clock);
    life.Register("a", 1);
    id_b = life.Register("b", 1);
    life.Run(milliseconds(500));
    before = life.publisher.view();
    EXPECT_EQ(before->nodes().size(), 2u);
  }
  ClusterLife life(dir.path(), &clock);
  life.FinishListening();
  const auto after = life.publisher.view();
  EXPECT_EQ(after->version(),
            ViewVersion(before->version().term() + 1, before->version().epoch() + 1));
  EXPECT_EQ(after->slots(), before->slots());
  EXPECT_EQ(life.Register("b", 2), id_b) << "a name keeps its id";
  EXPECT_GT(life.Register("c", 1), id_b);
}

TEST_F(ClusterStateTest, HowLongSlotsHaveBeenHeldSurvivesRestartsOfAll) {
  ViewCache::View first;
  {
    ClusterLife life(dir.path(), &clock);
    life.Register("a", 1, 70);
    life.Run(milliseconds(500));
    first = life.publisher.view();
    ASSERT_TRUE(first->history().known());
    EXPECT_EQ(first->history().since(SlotId(3)), first->version().epoch());
    life.Run(std::chrono::seconds(20));  // its lease ends: the view freezes
    EXPECT_TRUE(life.publisher.view()->frozen());
  }
  ClusterLife life(dir.path(), &clock);
  life.FinishListening();
  life.Register("a", 2, 70);
  life.Run(std::chrono::seconds(2));
  const auto view = life.publisher.view();
  ASSERT_EQ(view->nodes().size(), 1u);
  EXPECT_EQ(view->nodes()[0].boot_id, 2u);
  EXPECT_FALSE(view->frozen());
  EXPECT_GT(view->version().epoch(), first->version().epoch() + 2);
  EXPECT_EQ(view->history(), first->history()) << "nobody else has had a slot";
  life.Register("a", 2, 70);  // lives on, until its next life is not damped any more
  life.Run(milliseconds(3500));
  life.Register("a", 3, 71);
  life.Run(std::chrono::seconds(1));
  EXPECT_GT(life.publisher.view()->history().since(SlotId(3)), view->version().epoch())
      << "another storage";
}

TEST_F(ClusterStateTest, WhatAnOperatorSetsReachesTheServerAndHoldsUntilItIsSetAgain) {
  const auto set = [](ClusterLife* life, const std::string& name, uint64_t bytes) {
    v1::SetNodeRequest request;
    request.set_name(name);
    request.set_dram_bytes(bytes);
    v1::SetNodeReply reply;
    return life->state->SetNode(request, &reply);
  };
  {
    ClusterLife life(dir.path(), &clock);
    const uint32_t id = life.Register("a", 1);
    life.FinishListening();
    EXPECT_EQ(life.Beat(id, 1, life.publisher.view()->version()).dram_bytes(), 0u);
    EXPECT_EQ(set(&life, "b", kGiB).code(), StatusCode::kNotFound);
    EXPECT_EQ(set(&life, "a", kMiB).code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(set(&life, "a", uint64_t{1} << 50).code(), StatusCode::kInvalidArgument);
    ASSERT_EQ(set(&life, "a", kGiB), OkStatus());
    EXPECT_EQ(life.Beat(id, 1, life.publisher.view()->version()).dram_bytes(), kGiB);
    life.Leave(id, 1);
  }
  ClusterLife life(dir.path(), &clock);
  life.FinishListening();
  const uint32_t id = life.Register("a", 2);
  life.Run(std::chrono::seconds(1));
  EXPECT_EQ(life.Beat(id, 2, life.publisher.view()->version()).dram_bytes(), kGiB);
  v1::ListNodesReply list;
  ASSERT_TRUE(life.state->ListNodes({}, &list).ok());
  EXPECT_EQ(list.nodes(0).node().dram_set_bytes(), kGiB);
  ASSERT_EQ(set(&life, "a", 0), OkStatus());
  EXPECT_EQ(life.Beat(id, 2, life.publisher.view()->version()).dram_bytes(), 0u);
}

TEST_F(ClusterStateTest, DefaultNamespaceIsMadeOnceOnly) {
  v1::Namespace ns;
  v1::GetNamespaceRequest get;
  get.set_name("default");
  {
    ClusterLife life(dir.path(), &clock);
    ASSERT_TRUE(life.state->GetNamespace(get, &ns).ok());
    v1::DeleteNamespaceRequest request;
    request.set_name("default");
    v1::DeleteNamespaceReply reply;
    ASSERT_TRUE(life.state->DeleteNamespace(request, &reply).ok());
  }
  ClusterLife life(dir.path(), &clock);
  EXPECT_EQ(life.state->GetNamespace(get, &ns).code(), StatusCode::kNotFound)
      << "what an operator deleted stays deleted";
}

TEST_F(ClusterStateTest, RemovedNameGetsAnIdOfItsOwnLater) {
  ClusterLife life(dir.path(), &clock);
  const uint32_t id = life.Register("a", 1);
  life.Register("b", 1);
  life.Run(milliseconds(500));
  life.Leave(id, 1);
  life.Run(milliseconds(500));
  v1::RemoveNodeRequest remove;
  remove.set_name("a");
  v1::RemoveNodeReply removed;
  ASSERT_TRUE(life.state->RemoveNode(remove, &removed).ok());
  EXPECT_GT(life.Register("a", 2), id);
}

// Others may have owned slots in views that this store has not seen: nobody goes on before an
// operator has said what that means.
TEST_F(ClusterStateTest, AServerThatIsAheadGetsNoLeaseUntilAnOperatorAcceptsIt) {
  for (const bool of_an_earlier_term : {false, true}) {
    SCOPED_TRACE(of_an_earlier_term);
    const TempDir other_dir;
    ManualClock other_clock;
    ClusterLife life(other_dir.path(), &other_clock);
    const uint32_t a = life.Register("a", 1, 70, life.state->cluster());
    const uint32_t b = life.Register("b", 1, 71);
    life.Run(milliseconds(500));
    const auto before = life.publisher.view();
    const ViewVersion own = before->version();
    EXPECT_TRUE(life.Beat(a, 1, own).renewed());
    EXPECT_FALSE(life.Ahead(0));
    EXPECT_EQ(life.AcceptAhead().code(), StatusCode::kFailedPrecondition);
    const ViewVersion other = of_an_earlier_term ? ViewVersion(own.term() - 1, own.epoch() + 40)
                                                 : ViewVersion(own.term() + 3, own.epoch() + 40);
    EXPECT_FALSE(life.Beat(a, 1, other).renewed());
    EXPECT_FALSE(life.Beat(b, 1, own).renewed());
    EXPECT_EQ(life.publisher.view(), before) << "one word ends no history";
    EXPECT_TRUE(life.Ahead(0));
    EXPECT_FALSE(life.Ahead(1));
    life.Run(MembershipOptions().lease + kQuorumOver);
    ASSERT_EQ(life.AcceptAhead(), OkStatus());
    const auto after = life.publisher.view();
    EXPECT_GT(after->version(), std::max(own, other));
    EXPECT_GT(after->version().epoch(), other.epoch() + 1);
    EXPECT_NE(after->history().id(), before->history().id());
    EXPECT_EQ(after->history().since(SlotId(3)), after->version().epoch());
    EXPECT_EQ(after->slots(), before->slots());
    EXPECT_TRUE(life.Beat(a, 1, after->version()).renewed());
    EXPECT_FALSE(life.Ahead(0));
  }
}

// What all the others store would be lost for it.
TEST_F(ClusterStateTest, AServerThatIsParkedAloneIsNotAccepted) {
  ClusterLife life(dir.path(), &clock);
  const uint32_t a = life.Register("a", 1, 70);
  const uint32_t b = life.Register("b", 1, 71);
  life.Run(milliseconds(500));
  const auto view = life.publisher.view();
  EXPECT_FALSE(life.Beat(a, 1, ViewVersion(7, 70)).renewed());
  EXPECT_TRUE(life.Ahead(0));
  life.Run(seconds(10));
  EXPECT_TRUE(life.Beat(b, 1, view->version()).renewed());
  const Status refused = life.AcceptAhead();
  EXPECT_EQ(refused.code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(Message(refused).find("empty its data_dir"), std::string_view::npos) << refused;
  EXPECT_EQ(life.publisher.view()->history().id(), view->history().id());
}

// Its folder remembers a view that this controller has never made, and it has installed none.
TEST_F(ClusterStateTest, AServerWithTheFolderOfAnotherClusterIsNotAdmitted) {
  ClusterLife life(dir.path(), &clock);
  life.Register("a", 1);
  life.Run(milliseconds(500));
  const uint32_t b = life.Register("b", 1);
  (void)life.Beat(b, 1, life.publisher.view()->version(), ViewVersion(1, 500));
  life.Run(milliseconds(500));
  EXPECT_EQ(life.publisher.view()->nodes().size(), 1u);
  EXPECT_TRUE(life.Ahead(1));
}

TEST_F(ClusterStateTest, AServerIsAdmittedWhenItHasInstalledAView) {
  ClusterLife life(dir.path(), &clock);
  life.Register("a", 1);
  life.Run(milliseconds(500));
  const uint32_t b = life.Announce("b", 1, 0);
  (void)life.Beat(b, 1, {});
  life.Run(milliseconds(500));
  EXPECT_EQ(life.publisher.view()->nodes().size(), 1u) << "who cannot install serves nobody";
  (void)life.Beat(b, 1, life.publisher.view()->version());
  life.Run(milliseconds(500));
  EXPECT_EQ(life.publisher.view()->nodes().size(), 2u);
}

// Without that the old owner and the new one both take Puts.
TEST_F(ClusterStateTest, AnOwnerThatDoesNotInstallItsLossGetsNoLeaseAndTheOthersWait) {
  ClusterLife life(dir.path(), &clock);
  const uint32_t a = life.Register("a", 1);
  life.Run(milliseconds(500));
  const ViewVersion first = life.publisher.view()->version();
  EXPECT_TRUE(life.Beat(a, 1, first).renewed());
  const uint32_t b = life.Register("b", 1);
  life.Run(milliseconds(500));
  const ViewVersion second = life.publisher.view()->version();
  ASSERT_EQ(life.publisher.view()->nodes().size(), 2u);
  EXPECT_FALSE(life.Beat(a, 1, first).renewed());
  EXPECT_EQ(life.Beat(b, 1, second).active_epoch(), first.epoch());
  life.Run(std::chrono::milliseconds(4000));
  EXPECT_EQ(life.Beat(b, 1, second).active_epoch(), first.epoch()) << "its lease goes on";
  EXPECT_TRUE(life.Beat(a, 1, second).renewed());
  EXPECT_EQ(life.Beat(b, 1, second).active_epoch(), second.epoch());
}

// A server that talks to others would count as silent, and as one with an older view.
TEST_F(ClusterStateTest, AHeartbeatThatALaterOneHasOvertakenSaysNothing) {
  ClusterLife life(dir.path(), &clock);
  const uint32_t a = life.Register("a", 1);
  life.Run(milliseconds(500));
  const ViewVersion view = life.publisher.view()->version();
  const auto beat = [&](uint64_t sequence, ViewVersion installed) {
    v1::HeartbeatReply reply;
    life.sequence = sequence;
    return life.TryBeat(a, 1, installed, {}, /*refused=*/false, &reply).code();
  };
  EXPECT_EQ(beat(2, view), StatusCode::kOk);
  EXPECT_EQ(beat(2, view), StatusCode::kUnavailable) << "the same one again";
  EXPECT_EQ(beat(1, ViewVersion(1, 1)), StatusCode::kUnavailable);
  v1::ListNodesReply list;
  ASSERT_TRUE(life.state->ListNodes({}, &list).ok());
  EXPECT_EQ(list.nodes(0).epoch(), view.epoch());
  EXPECT_EQ(beat(3, view), StatusCode::kOk);
  EXPECT_EQ(beat(0, view), StatusCode::kOk) << "older software does not number them";
  life.sequence = 1;
  (void)life.Register("a", 2);
  life.sequence = 2;
  EXPECT_FALSE(life.Beat(a, 2, view).renewed()) << "another process begins again, and is heard";
}

// The same without end: then its lease ends, and it is out.
TEST_F(ClusterStateTest, AnOwnerThatNeverInstallsItsLossIsTakenOut) {
  ClusterLife life(dir.path(), &clock);
  const uint32_t a = life.Register("a", 1);
  life.Run(milliseconds(500));
  const ViewVersion first = life.publisher.view()->version();
  (void)life.Beat(a, 1, first);
  const uint32_t b = life.Register("b", 1);
  const uint32_t c = life.Register("c", 1);
  for (int beat = 0; beat < 80; ++beat) {
    life.Run(milliseconds(100));
    (void)life.Beat(a, 1, first);
    (void)life.Beat(b, 1, life.publisher.view()->version());
    (void)life.Beat(c, 1, life.publisher.view()->version());
  }
  const auto view = life.publisher.view();
  EXPECT_EQ(view->Find(NodeId(a)), nullptr);
  EXPECT_EQ(life.Beat(b, 1, view->version()).active_epoch(), first.epoch())
      << "alone it is a majority of the view that it has, and may not have heard that it is out";
  (void)life.Beat(a, 1, first, {}, /*refused=*/true);
  life.Run(kQuorumOver + milliseconds(100));
  EXPECT_EQ(life.Beat(b, 1, view->version()).active_epoch(), view->version().epoch());
  (void)life.Beat(a, 1, view->version());
  life.Run(std::chrono::seconds(6));
  (void)life.Beat(a, 1, view->version());
  (void)life.Beat(b, 1, view->version());
  (void)life.Beat(c, 1, view->version());
  life.Run(milliseconds(500));
  EXPECT_NE(life.publisher.view()->Find(NodeId(a)), nullptr) << "it works again";
}

TEST_F(ClusterStateTest, WhoHasLeftHasLeftAfterARestartAsWell) {
  {
    ClusterLife life(dir.path(), &clock);
    const uint32_t a = life.Register("a", 1);
    life.Register("b", 1);
    life.Run(milliseconds(500));
    life.Leave(a, 1);
  }
  ClusterLife life(dir.path(), &clock);
  v1::ListNodesReply list;
  ASSERT_TRUE(life.state->ListNodes({}, &list).ok());
  EXPECT_EQ(list.nodes(0).node().state(), v1::NODE_LEFT);
  life.FinishListening();
  life.Run(milliseconds(500));
  EXPECT_EQ(life.publisher.view()->nodes().size(), 1u) << "its slots are not kept for a lease";
  life.Register("a", 2);
  list.Clear();
  ASSERT_TRUE(life.state->ListNodes({}, &list).ok());
  EXPECT_EQ(list.nodes(0).node().state(), v1::NODE_LIVE);
}

TEST_F(ClusterStateTest, SoHasWhoLeftBeforeTheViewShowedIt) {
  {
    ClusterLife life(dir.path(), &clock);
    const uint32_t a = life.Register("a", 1);
    life.Run(milliseconds(500));
    ASSERT_EQ(life.Register("a", 2), a);
    life.Leave(a, 2);
  }
  ClusterLife life(dir.path(), &clock);
  v1::ListNodesReply list;
  ASSERT_TRUE(life.state->ListNodes({}, &list).ok());
  EXPECT_EQ(list.nodes(0).node().state(), v1::NODE_LEFT);
}

TEST_F(ClusterStateTest, ViewsOfEarlierTermsAreKnownAfterARestart) {
  uint32_t id = 0;
  ViewVersion last;
  {
    ClusterLife life(dir.path(), &clock);
    id = life.Register("a", 1, 70);
    life.Run(milliseconds(500));
    last = life.publisher.view()->version();
  }
  ClusterLife life(dir.path(), &clock);
  life.FinishListening();
  const auto view = life.publisher.view();
  (void)life.Beat(id, 1, last);
  EXPECT_EQ(life.publisher.view(), view);
  EXPECT_FALSE(life.Ahead(0));
}

TEST_F(ClusterStateTest, ListNodesShowsSlotsStateAndUsage) {
  ClusterLife life(dir.path(), &clock);
  const uint32_t id = life.Register("a", 1);
  life.Run(milliseconds(500));
  v1::HeartbeatRequest beat;
  beat.set_node_id(id);
  beat.set_boot_id(1);
  beat.mutable_usage()->set_objects(42);
  v1::HeartbeatReply reply;
  ASSERT_TRUE(life.state->Heartbeat(beat, &reply).ok());
  EXPECT_TRUE(reply.admitted());
  clock.Advance(milliseconds(700));
  v1::ListNodesReply list;
  ASSERT_TRUE(life.state->ListNodes({}, &list).ok());
  ASSERT_EQ(list.nodes_size(), 1);
  EXPECT_EQ(list.nodes(0).slots(), kSlotCount);
  EXPECT_EQ(list.nodes(0).node().state(), v1::NODE_LIVE);
  EXPECT_EQ(list.nodes(0).usage().objects(), 42u);
  EXPECT_EQ(list.nodes(0).heartbeat_age_ms(), 700u);
}

// A server of another cluster, by a mistaken address or a name that leads here.
class StrangerTest : public ClusterStateTest {
 protected:
  static v1::RegisterRequest Announces(const std::string& name, uint64_t boot, uint64_t cluster) {
    v1::RegisterRequest request;
    request.set_cluster(cluster);
    request.mutable_node()->set_name(name);
    request.mutable_node()->set_boot_id(boot);
    request.mutable_node()->set_data_address("h:1");
    request.mutable_node()->set_capacity_bytes(1 << 30);
    return request;
  }
  static uint64_t ClusterOf(ClusterLife* life) { return life->publisher.view()->cluster().value(); }
};

TEST_F(StrangerTest, IsRefusedByNameAndChangesNothing) {
  ClusterLife life(dir.path(), &clock);
  const uint32_t a = life.Register("a", 1, 70);
  life.Run(milliseconds(500));
  const auto view = life.publisher.view();
  const uint64_t own = ClusterOf(&life);
  ASSERT_NE(own, 0u);
  for (const char* name : {"a", "new"}) {
    v1::RegisterReply reply;
    const Status refused = life.state->Register(Announces(name, 2, own ^ 2), &reply);
    EXPECT_EQ(refused.code(), StatusCode::kFailedPrecondition);
    EXPECT_NE(Message(refused).find(ClusterText(ClusterId(own))), std::string_view::npos);
    EXPECT_NE(Message(refused).find(ClusterText(ClusterId(own ^ 2))), std::string_view::npos);
  }
  v1::HeartbeatRequest beat;
  beat.set_cluster(own ^ 2);
  beat.set_node_id(a);
  beat.set_boot_id(1);
  beat.set_highest_term(ViewVersion::kTermMax - 1);
  v1::HeartbeatReply beaten;
  EXPECT_EQ(life.state->Heartbeat(beat, &beaten).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(life.metrics.strangers_refused.value(), 3);
  EXPECT_TRUE(life.Beat(a, 1, view->version()).renewed()) << "nobody has taken its name";
  v1::ListNodesReply list;
  ASSERT_TRUE(life.state->ListNodes({}, &list).ok());
  EXPECT_EQ(list.nodes_size(), 1);
  EXPECT_FALSE(list.nodes(0).ahead());
  EXPECT_EQ(list.cluster(), own);
  EXPECT_EQ(life.Register("b", 1), a + 1) << "no id was used up";
  life.Run(milliseconds(100));
  EXPECT_EQ(life.publisher.view()->history().id(), view->history().id());
}

TEST_F(StrangerTest, OwnServersAndThoseThatNameNoClusterAreTaken) {
  ClusterLife life(dir.path(), &clock);
  v1::RegisterReply reply;
  EXPECT_TRUE(life.state->Register(Announces("a", 1, ClusterOf(&life)), &reply).ok());
  EXPECT_EQ(reply.cluster(), ClusterOf(&life));
  EXPECT_TRUE(life.state->Register(Announces("old", 1, 0), &reply).ok());
}

TEST_F(StrangerTest, TheClusterIsThatOfTheStore) {
  uint64_t cluster = 0;
  {
    ClusterLife life(dir.path(), &clock);
    cluster = ClusterOf(&life);
    v1::ClusterUpdate update;
    WatchCursor cursor;
    ASSERT_TRUE(update.ParseFromString(*life.publisher.Next(&cursor).view));
    EXPECT_EQ(update.cluster(), cluster);
  }
  ClusterLife again(dir.path(), &clock);
  EXPECT_EQ(ClusterOf(&again), cluster);
  const TempDir other;
  ClusterLife another(other.path(), &clock);
  EXPECT_NE(ClusterOf(&another), cluster);
}

// One server's word must not use up the numbers of a cluster, not even with an operator's consent.
TEST_F(ClusterStateTest, NumbersThatNoControllerMakesAreNotAccepted) {
  ClusterLife life(dir.path(), &clock);
  const uint32_t a = life.Register("a", 1);
  const uint32_t b = life.Register("b", 1, 0, life.state->cluster());
  life.Run(milliseconds(500));
  const auto view = life.publisher.view();
  for (const ViewVersion claimed :
       {ViewVersion(ViewVersion::kTermMax - 1, 7), ViewVersion(3, ViewVersion::kEpochMax - 1)}) {
    (void)life.Beat(a, 1, {}, claimed);
    const Status refused = life.AcceptAhead();
    EXPECT_EQ(refused.code(), StatusCode::kFailedPrecondition);
    EXPECT_NE(Message(refused).find("server \"a\""), std::string_view::npos) << refused;
    EXPECT_EQ(life.publisher.view(), view);
  }
  // Another one's claim is believed nevertheless.
  (void)life.Beat(b, 1, {}, ViewVersion(4, 900));
  life.Run(MembershipOptions().lease + kQuorumOver);
  ASSERT_EQ(life.AcceptAhead(), OkStatus());
  EXPECT_EQ(life.publisher.view()->version().term(), 5u);
  EXPECT_LT(life.publisher.view()->version().epoch(), 1000u);
  (void)life.Beat(a, 1, {}, ViewVersion(ViewVersion::kTermMax - 1, 7));
  EXPECT_TRUE(life.Ahead(0)) << "it stays parked";
}

TEST_F(ClusterStateTest, ParkedServersAreCountedApartWhileTheyAreThere) {
  ClusterLife life(dir.path(), &clock);
  const uint32_t a = life.Register("a", 1);
  const uint32_t b = life.Register("b", 1);
  const uint32_t c = life.Register("c", 1);
  life.Run(milliseconds(500));
  life.Leave(c, 1);
  for (int i = 0; i < 60; ++i) {
    (void)life.Beat(a, 1, life.publisher.view()->version());
    (void)life.Beat(b, 1, {}, ViewVersion(9, 9));
    life.Run(milliseconds(100));
  }
  EXPECT_EQ(life.metrics.nodes_live.value(), 1);
  EXPECT_EQ(life.metrics.nodes_ahead.value(), 1);
  EXPECT_EQ(life.metrics.nodes_left.value(), 1);
  EXPECT_EQ(life.metrics.nodes_down.value(), 0);
  life.Run(std::chrono::seconds(10));
  EXPECT_EQ(life.metrics.nodes_ahead.value(), 0);
  EXPECT_EQ(life.metrics.nodes_down.value(), 2);
  EXPECT_FALSE(life.Ahead(1));
}

// As a server with an SSD tier does: it keeps its slots until its lease ends.
TEST_F(ClusterStateTest, AServerThatStoppedInOrderIsNotDownAlsoAfterARestart) {
  uint32_t a = 0;
  {
    ClusterLife life(dir.path(), &clock);
    a = life.Register("a", 1);
    const uint32_t b = life.Register("b", 1);
    life.Run(milliseconds(500));
    life.Leave(a, 1, true);
    life.Run(std::chrono::seconds(10));
    EXPECT_EQ(life.metrics.nodes_stopped.value(), 1);
    EXPECT_EQ(life.metrics.nodes_down.value(), 1) << "b said nothing: " << b;
  }
  ClusterLife life(dir.path(), &clock);
  life.FinishListening();
  life.Run(std::chrono::seconds(10));
  EXPECT_EQ(life.metrics.nodes_stopped.value(), 1);
  EXPECT_EQ(life.metrics.nodes_down.value(), 1);
  EXPECT_EQ(life.Register("a", 2), a);
  life.Run(std::chrono::seconds(10));
  EXPECT_EQ(life.metrics.nodes_stopped.value(), 0) << "it came back, and died";
  EXPECT_EQ(life.metrics.nodes_down.value(), 2);
}

TEST_F(ClusterStateTest, WhenNodesCameAndWentSurvivesARestart) {
  int64_t joined = 0, left = 0;
  {
    ClusterLife life(dir.path(), &clock);
    const uint32_t a = life.Register("a", 1);
    life.Register("b", 1);
    life.Run(milliseconds(500));
    life.Leave(a, 1);
    v1::ListNodesReply list;
    ASSERT_TRUE(life.state->ListNodes({}, &list).ok());
    joined = list.nodes(0).node().joined_unix_ms();
    left = list.nodes(0).node().left_unix_ms();
    EXPECT_GT(joined, 0);
    EXPECT_GE(left, joined);
    EXPECT_EQ(list.nodes(1).node().left_unix_ms(), 0);
  }
  ClusterLife life(dir.path(), &clock);
  v1::ListNodesReply list;
  ASSERT_TRUE(life.state->ListNodes({}, &list).ok());
  EXPECT_EQ(list.nodes(0).node().joined_unix_ms(), joined);
  EXPECT_EQ(list.nodes(0).node().left_unix_ms(), left);
  EXPECT_GE(list.now_unix_ms(), left);
  EXPECT_EQ(list.version(), Version());
  life.FinishListening();
  life.Register("a", 2);
  list.Clear();
  ASSERT_TRUE(life.state->ListNodes({}, &list).ok());
  EXPECT_EQ(list.nodes(0).node().joined_unix_ms(), joined);
  EXPECT_EQ(list.nodes(0).node().left_unix_ms(), 0) << "it is there again";
}

TEST_F(ClusterStateTest, ListNodesSaysForHowLongEachHasBeenBehind) {
  ClusterLife life(dir.path(), &clock);
  const uint32_t a = life.Register("a", 1);
  life.Run(milliseconds(500));
  const ViewVersion first = life.publisher.view()->version();
  (void)life.Beat(a, 1, first);
  const auto behind_ms = [&] {
    v1::ListNodesReply list;
    EXPECT_TRUE(life.state->ListNodes({}, &list).ok());
    EXPECT_EQ(list.heartbeat_ms(), 1000u);
    return list.nodes(0).behind_ms();
  };
  EXPECT_EQ(behind_ms(), 0u);
  life.Register("b", 1);
  life.Run(milliseconds(500));
  ASSERT_GT(life.publisher.view()->version(), first);
  const uint64_t once = behind_ms();
  EXPECT_LE(once, 500u);
  life.Register("c", 1);
  life.Run(milliseconds(3000));
  EXPECT_EQ(behind_ms(), once + 3000) << "a newer view does not begin it anew";
  (void)life.Beat(a, 1, life.publisher.view()->version());
  EXPECT_EQ(behind_ms(), 0u);
}

}  // namespace
}  // namespace ems::controller
