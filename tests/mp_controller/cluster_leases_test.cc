// What must hold: leases that an earlier life of the controller gave count to their end, whatever
// the next one gives; and those that live have the time to be heard.
#include <gtest/gtest.h>

#include <vector>

#include "cluster/while_starting.h"
#include "tests/mp_controller/cluster_life.h"
#include "tests/mp_controller/temp_dir.h"

namespace ems::controller {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class ClusterLeasesTest : public ::testing::Test {
 protected:
  // With heartbeats of these, of boot id 1, which install each view. The first ones after a restart
  // are heard and not answered.
  static void RunWith(ClusterLife* life, const std::vector<uint32_t>& ids, Duration time) {
    for (Duration past{}; past < time; past += milliseconds(500)) {
      life->Run(milliseconds(500));
      for (const uint32_t id : ids) {
        v1::HeartbeatReply reply;
        (void)life->TryBeat(id, 1, life->publisher.view()->version(), {}, false, &reply);
      }
    }
  }
  // As a machine does: the folder is there after a boot, the kernel is another one.
  static uint32_t Boot(ClusterLife* life, const std::string& name, uint64_t boot) {
    v1::RegisterRequest request;
    v1::Node* const node = request.mutable_node();
    node->set_name(name);
    node->set_boot_id(boot);
    node->set_lineage(70);
    node->set_data_address(name + ":1");
    node->set_host_id(fmt::format("{}/{}", name, boot));
    node->set_folder(5);
    node->set_capacity_bytes(1 << 30);
    v1::RegisterReply reply;
    EXPECT_EQ(life->state->Register(request, &reply), OkStatus());
    return reply.node_id();
  }
  static Status AcceptLoss(ClusterLife* life) {
    v1::AcceptLossReply reply;
    return life->state->AcceptLoss({}, &reply);
  }

  const TempDir dir;
  ManualClock clock;
};

// A server that has not been heard of since may act on the lease that the first life gave it.
TEST_F(ClusterLeasesTest, LeasesOfALifeThatGaveLongerOnesCountToTheirEnd) {
  uint32_t a = 0;
  {
    ClusterLife life(dir.path(), &clock, {.lease = seconds(60)});
    a = life.Register("a", 1);
    const std::vector<uint32_t> three = {a, life.Register("b", 1), life.Register("c", 1)};
    RunWith(&life, three, seconds(2));
    EXPECT_EQ(life.Beat(a, 1, life.publisher.view()->version()).lease_ms(), 60000U);
  }
  for (const int later_s : {20, 58}) {  // the second life with shorter ones knows it as well
    ClusterLife life(dir.path(), &clock);
    const std::vector<uint32_t> others = {life.Register("b", 1), life.Register("c", 1),
                                          life.Register("d", 1)};
    RunWith(&life, others, seconds(later_s));
    const auto view = life.publisher.view();
    ASSERT_EQ(view->nodes().size(), 4U) << "a is not dead yet";
    const v1::HeartbeatReply reply = life.Beat(others[0], 1, view->version());
    EXPECT_LT(reply.active_epoch(), view->version().epoch()) << "a has lost slots to d";
    EXPECT_EQ(reply.lease_ms(), 5000U);
    if (later_s == 20) continue;
    RunWith(&life, others, seconds(5));
    const ViewVersion last = life.publisher.view()->version();
    EXPECT_EQ(life.publisher.view()->Find(NodeId(a)), nullptr);
    EXPECT_EQ(life.Beat(others[0], 1, last).active_epoch(), last.epoch());
  }
}

// Those that live find a controller again within a few seconds, one after the other.
TEST_F(ClusterLeasesTest, ALossIsNotAcceptedBeforeSurvivorsHadTimeToBeHeard) {
  {
    ClusterLife life(dir.path(), &clock);
    const uint32_t a = life.Register("a", 1);
    RunWith(&life, {a, life.Register("b", 1), life.Register("c", 1)}, seconds(2));
    RunWith(&life, {a}, seconds(10));
    ASSERT_TRUE(life.publisher.view()->frozen());
  }
  ClusterLife life(dir.path(), &clock);
  const uint32_t a = life.Register("a", 1);
  RunWith(&life, {a}, seconds(4));
  const Status early = AcceptLoss(&life);
  EXPECT_EQ(early.code(), StatusCode::kUnavailable);
  EXPECT_NE(Message(early).find("ask again in 3 s"), std::string::npos) << early;
  EXPECT_EQ(life.publisher.view()->nodes().size(), 3U);
  const uint32_t b = life.Register("b", 1);
  RunWith(&life, {a, b}, milliseconds(3500));
  EXPECT_TRUE(AcceptLoss(&life).ok());
  ASSERT_EQ(life.publisher.view()->nodes().size(), 2U);
  EXPECT_NE(life.publisher.view()->Find(NodeId(b)), nullptr);
}

// Once those have ended, a later life need not wait for them.
TEST_F(ClusterLeasesTest, LongerLeasesThatHaveEndedAreForgotten) {
  {
    ClusterLife life(dir.path(), &clock, {.lease = seconds(60)});
    EXPECT_EQ(life.store->Load()->given.lease_ms, 60000U);
  }
  ClusterLife life(dir.path(), &clock);
  life.Run(seconds(59));
  EXPECT_EQ(life.store->Load()->given.lease_ms, 60000U);
  life.Run(seconds(2));
  EXPECT_EQ(life.store->Load()->given.lease_ms, 5000U);
}

// A server that sleeps for ten seconds between two heartbeats says later than others what it has.
TEST_F(ClusterLeasesTest, ServersThatWereToldToSleepLongerAreWaitedForAndToldOtherwise) {
  uint32_t a = 0;
  {
    ClusterLife life(dir.path(), &clock, {.heartbeat = seconds(10), .lease = seconds(60)});
    a = life.Register("a", 1);
    RunWith(&life, {a}, seconds(1));
    EXPECT_EQ(life.Beat(a, 1, life.publisher.view()->version()).heartbeat_ms(), 10'000U);
  }
  for (int start = 0; start < 2; ++start) {
    ClusterLife life(dir.path(), &clock);
    const ViewVersion stored = life.publisher.view()->version();
    life.Run(milliseconds(11'900));
    v1::HeartbeatReply reply;
    EXPECT_TRUE(IsStarting(life.TryBeat(a, 1, stored, {}, false, &reply)));
    EXPECT_TRUE(IsStarting(AcceptLoss(&life)));
    life.Run(milliseconds(200));
    EXPECT_EQ(life.Beat(a, 1, stored).heartbeat_ms(), 1000U);
    life.Run(seconds(start == 0 ? 10 : 60));
  }
  ClusterLife life(dir.path(), &clock);
  life.FinishListening();
  (void)life.Beat(a, 1, life.publisher.view()->version());
}

// Nobody else had the view by which it took Puts before.
TEST_F(ClusterLeasesTest, AServerThatWasAloneTakesPutsAgainWhenItsMachineHasBooted) {
  ClusterLife life(dir.path(), &clock, {.damping = Duration::zero()});
  const uint32_t a = Boot(&life, "a", 1);
  RunWith(&life, {a}, seconds(2));
  ViewVersion newest = life.publisher.view()->version();
  ASSERT_EQ(life.Beat(a, 1, newest).active_epoch(), newest.epoch());
  ASSERT_EQ(Boot(&life, "a", 2), a);
  uint64_t active = 0;
  for (int second = 1; second <= 7; ++second) {
    life.Run(seconds(1));
    newest = life.publisher.view()->version();
    active = life.Beat(a, 2, newest).active_epoch();
    EXPECT_TRUE(second != 3 || active < newest.epoch()) << "the lease of before has not ended";
  }
  EXPECT_EQ(life.publisher.view()->Find(NodeId(a))->boot_id, 2U);
  EXPECT_EQ(active, newest.epoch());
}

// It is not waited for, and its slots are there for the next process of its name.
TEST_F(ClusterLeasesTest, WhoStopsAndKeepsItsSlotsIsKnownToTakeNoPuts) {
  for (const bool says_so : {false, true}) {
    SCOPED_TRACE(says_so);
    const TempDir folder;
    ClusterLife life(folder.path(), &clock, {.damping = Duration::zero()});
    const uint32_t a = life.Register("a", 1), b = life.Register("b", 1);
    RunWith(&life, {a, b}, seconds(2));
    v1::LeaveRequest leave;
    leave.set_node_id(a);
    leave.set_boot_id(1);
    leave.set_keeps_slots(true);
    v1::LeaveReply left;
    ASSERT_TRUE(!says_so || life.state->Leave(leave, &left).ok());
    RunWith(&life, {b}, seconds(1));
    ASSERT_NE(life.publisher.view()->Find(NodeId(a)), nullptr);
    (void)life.Register("a", 2);
    RunWith(&life, {b}, seconds(1));
    const ViewVersion newest = life.publisher.view()->version();
    ASSERT_EQ(life.publisher.view()->Find(NodeId(a))->boot_id, 2U);
    EXPECT_EQ(life.Beat(b, 1, newest).active_epoch() == newest.epoch(), says_so);
  }
}

// It hangs, says a word now and then, and may go on by a view in which it was alone.
TEST_F(ClusterLeasesTest, WhoPutsWaitForIsNamedWithTheTimeAndNotForgottenBeforeTheLossIsAccepted) {
  ClusterLife life(dir.path(), &clock);
  const uint32_t a = life.Register("a", 1);
  life.Run(milliseconds(500));
  const ViewVersion first = life.publisher.view()->version();
  (void)life.Beat(a, 1, first);
  const std::vector<uint32_t> others = {life.Register("b", 1), life.Register("c", 1)};
  const auto listed = [&] {
    v1::ListNodesReply list;
    EXPECT_TRUE(life.state->ListNodes({}, &list).ok());
    return list;
  };
  for (int second = 0; second < 12; ++second) {
    RunWith(&life, others, seconds(1));
    (void)life.Beat(a, 1, first);
  }
  v1::ListNodesReply list = listed();
  ASSERT_EQ(list.nodes_size(), 3);
  EXPECT_EQ(list.lease_ms(), 5000U);
  EXPECT_TRUE(list.nodes(0).waited_for());
  EXPECT_GE(list.nodes(0).waiting_ms(), 10'000U);
  EXPECT_LE(list.nodes(0).waiting_ms(), 12'000U);
  EXPECT_FALSE(list.nodes(1).waited_for());
  EXPECT_EQ(list.nodes(1).waiting_ms(), 0U);

  v1::RemoveNodeRequest remove;
  remove.set_name("a");
  v1::RemoveNodeReply removed;
  const Status refused = life.state->RemoveNode(remove, &removed);
  EXPECT_EQ(refused.code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(Message(refused).find("accept the loss first"), std::string::npos) << refused;
  EXPECT_EQ(listed().nodes_size(), 3);
  ASSERT_EQ(AcceptLoss(&life), OkStatus());
  EXPECT_FALSE(listed().nodes(0).waited_for());
  EXPECT_EQ(life.state->RemoveNode(remove, &removed), OkStatus());
  EXPECT_EQ(listed().nodes_size(), 2);
}

TEST_F(ClusterLeasesTest, AControllerThatListensSaysSoInTheWordsThatClientsKnow) {
  uint32_t a = 0;
  {
    ClusterLife life(dir.path(), &clock);
    a = life.Register("a", 1);
    life.Run(milliseconds(500));
  }
  ClusterLife life(dir.path(), &clock);
  v1::HeartbeatReply reply;
  life.Announce("a", 1, 0);
  EXPECT_TRUE(IsStarting(life.TryBeat(a, 1, life.publisher.view()->version(), {}, false, &reply)));
}

// Most of those that had the slots do not hear of the view by which they lost some: they go on by
// each other.
TEST_F(ClusterLeasesTest, AnOpenViewIsNotForgottenHoweverOftenTheControllerStarts) {
  std::vector<uint32_t> all;
  ViewVersion active;
  {
    ClusterLife life(dir.path(), &clock);
    for (const char* name : {"a", "b", "c"}) all.push_back(life.Register(name, 1));
    RunWith(&life, all, seconds(3));
    active = life.publisher.view()->version();
    all.push_back(life.Register("d", 1));
    RunWith(&life, {all[2], all[3]}, seconds(2));
    ASSERT_EQ(life.publisher.view()->nodes().size(), 4U);
  }
  for (size_t start = 0; start < 2 * kViewsKept; ++start) {
    ClusterLife life(dir.path(), &clock);
    RunWith(&life, {all[2], all[3]}, seconds(4));
    const v1::HeartbeatReply reply = life.Beat(all[3], 1, life.publisher.view()->version());
    ASSERT_EQ(reply.active_epoch(), active.epoch()) << "start " << start;
    ASSERT_TRUE(reply.renewed());
  }
  ClusterLife life(dir.path(), &clock);
  RunWith(&life, all, seconds(6));
  const ViewVersion newest = life.publisher.view()->version();
  EXPECT_EQ(newest.term(), 2 * kViewsKept + 2) << "there is room for a view of this term again";
  EXPECT_EQ(life.Beat(all[3], 1, newest).active_epoch(), newest.epoch());
}

// Nobody who could prove it is left, and the operator has forgotten the dead.
TEST_F(ClusterLeasesTest, AnAcceptedLossIsAcceptedInALaterLifeToo) {
  uint32_t c = 0;
  {
    ClusterLife life(dir.path(), &clock);
    const std::vector<uint32_t> all = {life.Register("a", 1), life.Register("b", 1),
                                       c = life.Register("c", 1)};
    RunWith(&life, all, seconds(3));
    RunWith(&life, {c}, seconds(8));
    ASSERT_TRUE(life.publisher.view()->frozen());
    for (int tries = 0; !AcceptLoss(&life).ok(); ++tries) {
      ASSERT_LT(tries, 20);
      RunWith(&life, {c}, seconds(1));
    }
    RunWith(&life, {c}, seconds(1));
    for (const char* name : {"a", "b"}) {
      v1::RemoveNodeRequest remove;
      remove.set_name(name);
      v1::RemoveNodeReply removed;
      ASSERT_EQ(life.state->RemoveNode(remove, &removed), OkStatus());
    }
  }
  ClusterLife life(dir.path(), &clock);
  RunWith(&life, {c}, seconds(6));
  const ViewVersion newest = life.publisher.view()->version();
  EXPECT_EQ(newest.term(), 2U);
  EXPECT_EQ(life.Beat(c, 1, newest).active_epoch(), newest.epoch());
}

// A disk was replaced: nothing of the next process shows that the one before is dead, but its word.
TEST_F(ClusterLeasesTest, WhoStoppedInOrderHasDoneSoInALaterLifeToo) {
  for (const bool keeps_slots : {true, false}) {
    SCOPED_TRACE(keeps_slots);
    const TempDir folder;
    uint32_t a = 0, b = 0;
    const MembershipOptions options{.damping = Duration::zero()};
    {
      ClusterLife life(folder.path(), &clock, options);
      a = life.Register("a", 1);
      b = life.Register("b", 1);
      RunWith(&life, {a, b}, seconds(2));
      v1::LeaveRequest leave;
      leave.set_node_id(a);
      leave.set_boot_id(1);
      leave.set_keeps_slots(keeps_slots);
      v1::LeaveReply left;
      ASSERT_TRUE(life.state->Leave(leave, &left).ok());
      if (!keeps_slots) (void)life.Announce("a", 2, 0);  // and dies before a view shows it
    }
    ClusterLife life(folder.path(), &clock, options);
    RunWith(&life, {b}, seconds(5));
    ASSERT_EQ(life.Register("a", 3), a);
    RunWith(&life, {b}, seconds(1));
    const ViewVersion newest = life.publisher.view()->version();
    ASSERT_EQ(life.publisher.view()->Find(NodeId(a))->boot_id, 3U);
    EXPECT_EQ(life.Beat(b, 1, newest).active_epoch(), newest.epoch());
  }
}

// The controller dies again and again while most servers are dead, so that views gather that nobody
// can close.
TEST_F(ClusterLeasesTest, TheDeadForWhomViewsStayOpenAreNamedAndTheirLossIsAccepted) {
  uint32_t c = 0;
  {
    ClusterLife life(dir.path(), &clock);
    const std::vector<uint32_t> all = {life.Register("a", 1), life.Register("b", 1),
                                       c = life.Register("c", 1)};
    RunWith(&life, all, seconds(3));
  }
  for (size_t start = 0; start < Activation::kOpenViewsMax + 2; ++start) {
    ClusterLife life(dir.path(), &clock);
    RunWith(&life, {c}, seconds(4));
  }
  ClusterLife life(dir.path(), &clock);
  RunWith(&life, {c}, seconds(20));
  v1::ListNodesReply list;
  ASSERT_TRUE(life.state->ListNodes({}, &list).ok());
  EXPECT_TRUE(list.nodes(0).waited_for() && list.nodes(1).waited_for());
  EXPECT_GE(list.nodes(0).waiting_ms(), 15'000U);
  EXPECT_FALSE(list.nodes(2).waited_for());
  ASSERT_EQ(AcceptLoss(&life), OkStatus());
  // There is room for the view that says that most are gone; it asks again.
  RunWith(&life, {c}, seconds(1));
  ASSERT_TRUE(life.publisher.view()->frozen());
  for (int tries = 0; !AcceptLoss(&life).ok(); ++tries) {
    ASSERT_LT(tries, 20);
    RunWith(&life, {c}, seconds(1));
  }
  RunWith(&life, {c}, seconds(2));
  const ViewVersion newest = life.publisher.view()->version();
  EXPECT_EQ(life.publisher.view()->nodes().size(), 1U);
  EXPECT_EQ(life.Beat(c, 1, newest).active_epoch(), newest.epoch());
}

}  // namespace
}  // namespace ems::controller
