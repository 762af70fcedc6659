// The state machine under a clock that the test moves: 100 ms a tick, as the controller does.
#include "mp_controller/membership.h"

#include <gtest/gtest.h>

#include <set>

namespace ems::controller {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

NodeInfo Info(const std::string& name, uint64_t boot, uint64_t capacity = 1 << 30) {
  NodeInfo info;
  info.name = name;
  info.boot_id = boot;
  info.data_address = "h:1";
  info.capacity_bytes = capacity;
  return info;
}

const Membership::Word kInstalled = {.installed = ViewVersion(1, 1), .usage = {}};

// Processes that send heartbeats while they live, and the views that follow.
class Cluster {
 public:
  void Start(const std::string& name, uint64_t boot) {
    if (!membership.IdOf(name).has_value()) membership.AddNode(NodeId(next_id++), name);
    ids[name] = *membership.Register(Info(name, boot), now);
    alive[name] = boot;
    (void)membership.Heartbeat(ids[name], boot, kInstalled, now);
  }
  // A controller that begins with that view.
  void Restore(const DhtView& restored, TimePoint leased_until = {}) {
    membership.RestoreView(restored, now, leased_until);
    membership.Listen(now);
  }
  void Kill(const std::string& name) { alive.erase(name); }
  void Run(Duration time) {
    for (const TimePoint end = now + time; now < end;) {
      now += milliseconds(100);
      if (now.time_since_epoch() % seconds(1) == Duration::zero()) Beat();
      if (auto proposal = membership.Propose(now)) {
        membership.Commit(*proposal, now);
        view = *proposal;
        published.push_back(now);
      }
    }
  }
  void Beat() {
    for (const auto& [name, boot] : alive) {
      const auto reply = membership.Heartbeat(ids[name], boot, kInstalled, now);
      if (!reply.ok()) Start(name, boot);
    }
  }
  std::set<std::string> names() const {
    std::set<std::string> names;
    for (const auto& node : view.nodes) names.insert(node.name);
    return names;
  }
  uint64_t BootOf(const std::string& name) const {
    for (const auto& node : view.nodes)
      if (node.name == name) return node.boot_id;
    return 0;
  }

  Membership membership{MembershipOptions{}};
  TimePoint now{seconds(1000)};
  uint32_t next_id = 1;
  std::map<std::string, NodeId> ids;
  std::map<std::string, uint64_t> alive;
  Proposal view;
  std::vector<TimePoint> published;
};

using Names = std::set<std::string>;

Cluster Running(int nodes, Duration time = seconds(60)) {
  Cluster cluster;
  for (int i = 0; i < nodes; ++i) cluster.Start("n" + std::to_string(i), 1);
  cluster.Run(time);
  return cluster;
}

TEST(MembershipTest, RegistrationsWithinTheSettleTimeMakeOneView) {
  Cluster cluster;
  cluster.Start("a", 1);
  cluster.Run(milliseconds(100));
  cluster.Start("b", 1);
  EXPECT_TRUE(cluster.published.empty());
  cluster.Run(milliseconds(300));
  ASSERT_EQ(cluster.published.size(), 1u);
  EXPECT_EQ(cluster.names(), (Names{"a", "b"}));
  cluster.Start("a", 1);  // the same again changes nothing
  cluster.Run(seconds(30));
  EXPECT_EQ(cluster.published.size(), 1u);
}

TEST(MembershipTest, KilledNodeIsOutWithin6700Ms) {
  for (int offset_ms = 0; offset_ms < 1000; offset_ms += 100) {
    Cluster cluster = Running(3);
    cluster.Run(milliseconds(offset_ms));
    const TimePoint killed = cluster.now;
    cluster.Kill("n1");
    cluster.Run(seconds(10));
    EXPECT_EQ(cluster.names(), (Names{"n0", "n2"}));
    EXPECT_LE(cluster.published.back() - killed, milliseconds(6700)) << offset_ms;
    EXPECT_GE(cluster.published.back() - killed, milliseconds(4000)) << offset_ms;
  }
}

TEST(MembershipTest, LostHeartbeatsShorterThanTheLeaseChangeNothing) {
  Cluster cluster = Running(3);
  const size_t views = cluster.published.size();
  cluster.Kill("n1");
  cluster.Run(milliseconds(3900));
  cluster.alive["n1"] = 1;
  cluster.Run(seconds(20));
  EXPECT_EQ(cluster.published.size(), views);
}

TEST(MembershipTest, LeaveGivesUpSlotsAtOnceAndCleanRestartIsNotDelayed) {
  Cluster cluster = Running(3);
  ASSERT_TRUE(cluster.membership.Leave(cluster.ids["n1"], 1, cluster.now).ok());
  cluster.Kill("n1");
  cluster.Run(milliseconds(400));
  EXPECT_EQ(cluster.names(), (Names{"n0", "n2"}));
  const NodeId id = cluster.ids["n1"];
  cluster.Start("n1", 2);
  EXPECT_EQ(cluster.ids["n1"], id) << "a name keeps its id";
  cluster.Run(milliseconds(400));
  EXPECT_EQ(cluster.names(), (Names{"n0", "n1", "n2"}));
}

TEST(MembershipTest, LeavingAndComingBackAllTheTimeIsDamped) {
  Cluster cluster = Running(3);
  cluster.Start("n3", 1);
  cluster.Run(seconds(6));
  const size_t before = cluster.published.size();
  for (uint64_t boot = 1; boot <= 6; ++boot) {  // an orderly restart each 1.6 s
    (void)cluster.membership.Leave(cluster.ids["n3"], boot, cluster.now);
    cluster.Kill("n3");
    cluster.Run(milliseconds(800));
    cluster.Start("n3", boot + 1);
    cluster.Run(milliseconds(800));
  }
  // 9.6 s: out, and in and out again at most twice.
  EXPECT_LE(cluster.published.size() - before, 5u);
}

TEST(MembershipTest, NewBootIdKeepsThePlaceAndTheOldProcessIsTold) {
  Cluster cluster = Running(2);
  cluster.Start("n1", 2);
  cluster.Run(milliseconds(400));
  EXPECT_EQ(cluster.BootOf("n1"), 2u);
  const auto old =
      cluster.membership.Heartbeat(cluster.ids["n1"], 1, kInstalled, cluster.now).status();
  EXPECT_EQ(old.code(), StatusCode::kAborted);
  EXPECT_EQ(cluster.membership.Register(Info("n1", 1), cluster.now).status().code(),
            StatusCode::kAborted);
  EXPECT_EQ(cluster.membership.Leave(cluster.ids["n1"], 1, cluster.now).code(),
            StatusCode::kAborted);
  EXPECT_EQ(
      cluster.membership.Heartbeat(cluster.ids["n1"], 3, kInstalled, cluster.now).status().code(),
      StatusCode::kNotFound);
  EXPECT_EQ(cluster.membership.Heartbeat(NodeId(99), 1, kInstalled, cluster.now).status().code(),
            StatusCode::kNotFound);
}

// It may be a mistake, and die at once of what the other one has.
TEST(MembershipTest, AProcessTakesALivingNameOverWithItsFirstHeartbeat) {
  Cluster cluster = Running(2);
  Membership& membership = cluster.membership;
  const NodeId id = cluster.ids["n1"];
  ASSERT_TRUE(membership.Register(Info("n1", 2), cluster.now).ok());
  EXPECT_TRUE(membership.IsAnothers(id, 2));
  cluster.Run(seconds(20));
  EXPECT_EQ(cluster.BootOf("n1"), 1U) << "it died";
  EXPECT_TRUE(membership.Heartbeat(id, 1, kInstalled, cluster.now).ok());
  ASSERT_TRUE(membership.Heartbeat(id, 2, kInstalled, cluster.now).ok()) << "it did not";
  EXPECT_FALSE(membership.IsAnothers(id, 2));
  EXPECT_EQ(membership.Check(id, 1).code(), StatusCode::kAborted);
}

TEST(MembershipTest, OfADeadNameAProcessIsTheHolderAtOnce) {
  Cluster cluster = Running(3);
  cluster.Kill("n1");
  cluster.Run(seconds(7));
  ASSERT_TRUE(cluster.membership.Register(Info("n1", 2), cluster.now).ok());
  EXPECT_FALSE(cluster.membership.IsAnothers(cluster.ids["n1"], 2));
  EXPECT_EQ(cluster.membership.Check(cluster.ids["n1"], 1).code(), StatusCode::kAborted);
}

// All have two new processes one after the other, the second one while the change to the first is
// damped: the view comes to show the second ones.
TEST(MembershipTest, TwoQuickRestartsOfAllDoNotFreezeTheView) {
  Cluster cluster = Running(3);
  for (const uint64_t boot : {2, 3}) {
    for (const char* name : {"n0", "n1", "n2"}) cluster.Start(name, boot);
    cluster.Run(milliseconds(900));
  }
  ASSERT_EQ(cluster.BootOf("n0"), 2U);
  // No word of a process that the view does not show renews a lease.
  for (int i = 0; i < 200; ++i) {
    for (const char* name : {"n0", "n1", "n2"}) {
      Membership::Word word = kInstalled;
      word.alive = cluster.BootOf(name) == 3;
      cluster.alive.erase(name);
      ASSERT_TRUE(cluster.membership.Heartbeat(cluster.ids[name], 3, word, cluster.now).ok());
    }
    cluster.Run(milliseconds(100));
  }
  EXPECT_FALSE(cluster.membership.frozen());
  for (const char* name : {"n0", "n1", "n2"}) EXPECT_EQ(cluster.BootOf(name), 3U);
}

// It waits for an operator, and its slots do not wait for it.
TEST(MembershipTest, WhoIsAheadDoesNotKeepThePlaceOfTheProcessBefore) {
  Cluster cluster = Running(3);
  cluster.Start("n1", 2);
  cluster.Run(milliseconds(400));
  ASSERT_EQ(cluster.BootOf("n1"), 2U);
  cluster.Kill("n1");
  ASSERT_TRUE(cluster.membership.Register(Info("n1", 3), cluster.now).ok());
  for (int i = 0; i < 80; ++i) {
    const Membership::Word word = {
        .installed = ViewVersion(9, 9), .usage = {}, .ahead = true, .alive = false};
    ASSERT_TRUE(cluster.membership.Heartbeat(cluster.ids["n1"], 3, word, cluster.now).ok());
    cluster.Run(milliseconds(100));
  }
  EXPECT_EQ(cluster.names(), (Names{"n0", "n2"}));
}

TEST(MembershipTest, HeartbeatSaysWhetherTheViewShowsThisProcess) {
  Cluster cluster;
  cluster.Start("a", 1);
  EXPECT_FALSE(*cluster.membership.Heartbeat(cluster.ids["a"], 1, kInstalled, cluster.now));
  cluster.Run(milliseconds(400));
  EXPECT_TRUE(*cluster.membership.Heartbeat(cluster.ids["a"], 1, kInstalled, cluster.now));
}

// Nobody is admitted who has not shown that it installs views, or who has views of another cluster.
TEST(MembershipTest, OnlyWhoHasInstalledAViewOfThisClusterIsAdmitted) {
  Cluster cluster = Running(2);
  cluster.membership.AddNode(NodeId(50), "new");
  ASSERT_TRUE(cluster.membership.Register(Info("new", 1), cluster.now).ok());
  const auto say = [&](const Membership::Word& word) {
    ASSERT_TRUE(cluster.membership.Heartbeat(NodeId(50), 1, word, cluster.now).ok());
    cluster.Run(milliseconds(500));
  };
  say({.installed = {}, .usage = {}});
  EXPECT_EQ(cluster.names(), (Names{"n0", "n1"}));
  say({.installed = ViewVersion(9, 9), .usage = {}, .ahead = true});
  EXPECT_EQ(cluster.names(), (Names{"n0", "n1"}));
  say({.installed = ViewVersion(1, 1), .usage = {}, .alive = false});
  cluster.Run(seconds(6));
  EXPECT_EQ(cluster.names(), (Names{"n0", "n1"}));
  say(kInstalled);
  EXPECT_EQ(cluster.names(), (Names{"n0", "n1", "new"}));
}

TEST(MembershipTest, AHeartbeatThatDoesNotCountKeepsNobodyAlive) {
  Cluster cluster = Running(3);
  cluster.Kill("n1");
  for (int i = 0; i < 80; ++i) {
    Membership::Word word = kInstalled;
    word.alive = false;
    ASSERT_TRUE(cluster.membership.Heartbeat(cluster.ids["n1"], 1, word, cluster.now).ok());
    cluster.Run(milliseconds(100));
  }
  EXPECT_EQ(cluster.names(), (Names{"n0", "n2"}));
  EXPECT_LT(cluster.membership.List(cluster.now)[1].heartbeat_age, seconds(1)) << "it was heard";
}

// F14: however a node flaps, it changes the view at most once in 5 s.
TEST(MembershipTest, FlappingNodeChangesTheViewAtMostOnceIn5s) {
  for (const int period_s : {1, 3, 7, 12}) {
    Cluster cluster = Running(4, seconds(10));
    cluster.published.clear();
    uint64_t boot = 2;
    for (int cycle = 0; cycle < 120 / period_s; ++cycle) {
      cluster.Start("n1", boot++);  // a restart within the lease, or after it
      cluster.Run(milliseconds(500));
      if (period_s > 5) cluster.Kill("n1");
      cluster.Run(seconds(period_s) - milliseconds(500));
    }
    ASSERT_GE(cluster.published.size(), 2u);
    for (size_t i = 1; i < cluster.published.size(); ++i) {
      EXPECT_GE(cluster.published[i] - cluster.published[i - 1], seconds(5)) << period_s;
    }
  }
}

TEST(MembershipTest, LongUptimeIsNotDamped) {
  Cluster cluster = Running(3, seconds(120));
  cluster.Kill("n1");
  cluster.Run(seconds(8));
  ASSERT_EQ(cluster.names(), (Names{"n0", "n2"}));
  cluster.Start("n1", 2);
  cluster.Run(milliseconds(400));
  EXPECT_EQ(cluster.names(), (Names{"n0", "n1", "n2"}));
}

TEST(MembershipTest, MoreThanHalfGoneFreezesAndTheirReturnThaws) {
  Cluster cluster = Running(5);
  const auto before = cluster.names();
  for (const char* name : {"n0", "n1", "n2"}) cluster.Kill(name);
  cluster.Run(seconds(60));
  EXPECT_TRUE(cluster.membership.frozen());
  EXPECT_TRUE(cluster.view.frozen);
  EXPECT_EQ(cluster.names(), before) << "the table stays";
  const size_t views = cluster.published.size();
  cluster.Run(seconds(60));
  EXPECT_EQ(cluster.published.size(), views) << "time alone changes nothing";
  cluster.Start("n0", 9);
  cluster.Run(seconds(4));
  EXPECT_TRUE(cluster.membership.frozen()) << "others may follow";
  cluster.Run(seconds(2));
  EXPECT_FALSE(cluster.membership.frozen());
  EXPECT_EQ(cluster.names(), (Names{"n0", "n3", "n4"}));
}

// A power cut: nobody loses its slots who is no more than a lease behind the one before it.
TEST(MembershipTest, WhoComesBackOneAfterTheOtherFindsItsPlace) {
  Cluster cluster = Running(5);
  const auto before = cluster.names();
  for (const std::string& name : before) cluster.Kill(name);
  cluster.Run(seconds(60));
  ASSERT_TRUE(cluster.membership.frozen());
  uint64_t boot = 20;
  for (const std::string& name : before) {
    EXPECT_TRUE(cluster.membership.frozen()) << name;
    cluster.Start(name, ++boot);
    cluster.Run(seconds(4));
    EXPECT_EQ(cluster.names(), before) << name;
  }
  EXPECT_FALSE(cluster.membership.frozen()) << "all are back";
  for (const std::string& name : before) EXPECT_GT(cluster.BootOf(name), 20u) << name;
}

TEST(MembershipTest, OneThatComesAndGoesDoesNotKeepTheViewFrozen) {
  Cluster cluster = Running(5);
  for (const char* name : {"n0", "n1", "n2"}) cluster.Kill(name);
  cluster.Run(seconds(20));
  cluster.Start("n0", 9);
  cluster.Run(seconds(3));
  ASSERT_TRUE(cluster.membership.frozen());
  for (uint64_t boot = 10; boot < 13; ++boot) {
    cluster.Kill("n0");
    cluster.Start("n0", boot);
    cluster.Run(seconds(1));
  }
  EXPECT_FALSE(cluster.membership.frozen());
}

TEST(MembershipTest, HalfGoneIsNotMoreThanHalf) {
  Cluster cluster = Running(4);
  cluster.Kill("n0");
  cluster.Kill("n1");
  cluster.Run(seconds(10));
  EXPECT_FALSE(cluster.membership.frozen());
  EXPECT_EQ(cluster.names(), (Names{"n2", "n3"}));
}

// Deaths spread over the heartbeat interval are one event, not two moves and then a freeze.
TEST(MembershipTest, DeathsWithinOneHeartbeatAreCountedTogether) {
  Cluster cluster = Running(3);
  const size_t views = cluster.published.size();
  ASSERT_TRUE(cluster.membership.Heartbeat(cluster.ids["n0"], 1, kInstalled, cluster.now).ok());
  cluster.Kill("n0");
  cluster.Run(milliseconds(900));
  ASSERT_TRUE(cluster.membership.Heartbeat(cluster.ids["n1"], 1, kInstalled, cluster.now).ok());
  cluster.Kill("n1");
  cluster.Run(seconds(9));
  EXPECT_TRUE(cluster.membership.frozen());
  EXPECT_EQ(cluster.names().size(), 3u);
  EXPECT_EQ(cluster.published.size(), views + 1);
}

TEST(MembershipTest, LossesOfTheLastTenSecondsCount) {
  Cluster cluster = Running(4);
  cluster.Kill("n0");
  cluster.Run(seconds(3));
  cluster.Kill("n1");
  cluster.Run(seconds(3));
  cluster.Kill("n2");
  cluster.Run(seconds(10));
  EXPECT_TRUE(cluster.membership.frozen());
  Cluster slow = Running(4);
  for (const char* name : {"n0", "n1"}) {
    slow.Kill(name);
    slow.Run(seconds(30));
  }
  EXPECT_FALSE(slow.membership.frozen());
  EXPECT_EQ(slow.names(), (Names{"n2", "n3"}));
}

TEST(MembershipTest, AcceptLossThawsAndDropsTheMissing) {
  Cluster cluster = Running(3);
  EXPECT_EQ(cluster.membership.AcceptLoss().code(), StatusCode::kFailedPrecondition);
  cluster.Kill("n0");
  cluster.Kill("n1");
  cluster.Run(seconds(10));
  ASSERT_TRUE(cluster.membership.frozen());
  ASSERT_TRUE(cluster.membership.AcceptLoss().ok());
  cluster.Run(milliseconds(100));
  EXPECT_FALSE(cluster.membership.frozen());
  EXPECT_EQ(cluster.names(), (Names{"n2"}));
  cluster.Run(seconds(30));
  EXPECT_EQ(cluster.names(), (Names{"n2"}));
}

// F19: all restart at once, and the controller too: nobody is declared dead before a whole lease,
// nothing moves.
TEST(MembershipTest, RestoredNodesHaveOneLeaseAndThenFreeze) {
  Cluster old = Running(3);
  const auto view = *DhtView::Make(ViewVersion(1, 1), old.view.nodes, SlotTable(), false);
  Cluster cluster;
  cluster.Restore(*view);
  cluster.Run(seconds(4));
  EXPECT_TRUE(cluster.published.empty());
  cluster.Run(seconds(10));
  EXPECT_TRUE(cluster.membership.frozen());
  EXPECT_EQ(cluster.names().size(), 3u);

  Cluster again;
  again.Restore(*view);
  again.Run(seconds(2));
  for (const char* name : {"n0", "n1", "n2"}) again.Start(name, 7);
  again.Run(seconds(20));
  EXPECT_FALSE(again.membership.frozen());
  EXPECT_EQ(again.published.size(), 1u);
  EXPECT_EQ(again.BootOf("n2"), 7u);
}

// What a server reads meanwhile by itself is not known yet: its slots must not go to others.
TEST(MembershipTest, RestoredNodeThatFindsTheControllerLaterThanALeaseKeepsItsSlots) {
  Cluster old = Running(3);
  const auto view = *DhtView::Make(ViewVersion(1, 1), old.view.nodes, SlotTable(), false);
  Cluster cluster;
  cluster.membership.RestoreView(*view, cluster.now, cluster.now);
  cluster.Run(seconds(60));  // it loads what it has stored
  EXPECT_TRUE(cluster.published.empty()) << "nobody could be heard";
  cluster.membership.Listen(cluster.now);
  cluster.Start("n0", 1);
  cluster.Start("n1", 1);
  cluster.Run(milliseconds(6900));
  EXPECT_TRUE(cluster.published.empty());
  cluster.Start("n2", 1);
  cluster.Run(seconds(10));
  EXPECT_TRUE(cluster.published.empty());
  EXPECT_EQ(cluster.membership.Count(cluster.now).live, 3U);
  cluster.Kill("n2");
  cluster.Run(milliseconds(6700));
  EXPECT_EQ(cluster.names(), (Names{"n0", "n1"})) << "from then on as ever";
}

TEST(MembershipTest, RestoredNodeThatDoesNotComeBackIsOutAfterALeaseAndTheTimeToReconnect) {
  Cluster old = Running(3);
  const auto view = *DhtView::Make(ViewVersion(1, 1), old.view.nodes, SlotTable(), false);
  Cluster cluster;
  cluster.Restore(*view);
  cluster.Start("n0", 1);
  cluster.Start("n1", 1);
  cluster.Run(milliseconds(8200));
  EXPECT_EQ(cluster.names(), (Names{"n0", "n1"}));
}

// The controller gives shorter leases than before; that server has not heard of them yet.
TEST(MembershipTest, RestoredNodeIsNotDeadBeforeALongerLeaseOfBeforeHasEnded) {
  Cluster old = Running(3);
  const auto view = *DhtView::Make(ViewVersion(1, 1), old.view.nodes, SlotTable(), false);
  Cluster cluster;
  cluster.Restore(*view, cluster.now + seconds(60));
  for (const char* name : {"n0", "n1", "n2"}) cluster.Start(name, 1);
  cluster.Run(seconds(2));
  cluster.Kill("n2");
  cluster.Run(seconds(57));
  EXPECT_TRUE(cluster.published.empty());
  cluster.Run(seconds(3));
  EXPECT_EQ(cluster.names(), (Names{"n0", "n1"}));
  cluster.Run(seconds(15));
  cluster.Kill("n1");
  cluster.Run(milliseconds(6700));
  EXPECT_EQ(cluster.names(), (Names{"n0"})) << "from then on as ever";
}

TEST(MembershipTest, ALongerLeaseOfBeforeIsOfTheProcessThatHadIt) {
  Cluster old = Running(3);
  const auto view = *DhtView::Make(ViewVersion(1, 1), old.view.nodes, SlotTable(), false);
  Cluster cluster;
  cluster.Restore(*view, cluster.now + seconds(60));
  cluster.Start("n0", 1);
  cluster.Start("n1", 1);
  cluster.Start("n2", 2);
  cluster.Run(seconds(2));
  cluster.Kill("n2");
  cluster.Run(milliseconds(6700));
  EXPECT_EQ(cluster.names(), (Names{"n0", "n1"}));
}

TEST(MembershipTest, FrozenViewStaysFrozenOverARestart) {
  Cluster old = Running(3);
  const auto view = *DhtView::Make(ViewVersion(1, 1), old.view.nodes, SlotTable(), true);
  Cluster cluster;
  cluster.Restore(*view);
  cluster.Run(seconds(3));
  EXPECT_TRUE(cluster.membership.frozen()) << "nobody has been heard of yet";
  cluster.Start("n0", 5);
  cluster.Start("n1", 5);
  cluster.Run(seconds(4));
  EXPECT_TRUE(cluster.membership.frozen()) << "the third may follow";
  cluster.Run(seconds(2));
  EXPECT_FALSE(cluster.membership.frozen());
}

TEST(MembershipTest, PauseOfTheControllerEndsNoLease) {
  Cluster cluster = Running(3);
  const size_t views = cluster.published.size();
  cluster.now += seconds(30);
  cluster.Run(seconds(10));
  EXPECT_EQ(cluster.published.size(), views);
}

TEST(MembershipTest, RemoveForgetsTheDeadOnly) {
  Cluster cluster = Running(3);
  EXPECT_EQ(cluster.membership.CanRemove("n1").code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(cluster.membership.CanRemove("nobody").code(), StatusCode::kNotFound);
  cluster.Kill("n1");
  cluster.Run(seconds(10));
  ASSERT_TRUE(cluster.membership.CanRemove("n1").ok());
  cluster.membership.Remove("n1");
  EXPECT_EQ(cluster.membership.List(cluster.now).size(), 2u);
  EXPECT_FALSE(cluster.membership.IdOf("n1").has_value());
}

// Adds and registers nodes "<prefix>0" …, with ids from `first_id` on.
void Register(Membership* membership, const std::string& prefix, size_t count, uint32_t first_id,
              TimePoint now) {
  for (uint32_t i = 0; i < count; ++i) {
    NodeInfo info;
    info.name = prefix + std::to_string(i);
    info.boot_id = 1;
    info.capacity_bytes = 1;
    membership->AddNode(NodeId(first_id + i), info.name);
    ASSERT_TRUE(membership->Register(info, now).ok());
  }
}

TEST(MembershipTest, NodesThatLiveAreBounded) {
  Membership membership{MembershipOptions{}};
  const TimePoint now{seconds(100)};
  Register(&membership, "n", kNodesMax - 1, 1, now);
  EXPECT_TRUE(membership.CanAddNode().ok());
  Register(&membership, "last", 1, kNodesMax, now);
  EXPECT_EQ(membership.CanAddNode().code(), StatusCode::kResourceExhausted);
  ASSERT_TRUE(membership.Leave(NodeId(1), 1, now).ok());
  EXPECT_TRUE(membership.CanAddNode().ok()) << "those that are gone do not count";
}

TEST(MembershipTest, OfNodesThatAreGoneTheOneHeardOfLongestAgoIsForgotten) {
  Membership membership{MembershipOptions{}};
  const TimePoint now{seconds(100)};
  Register(&membership, "n", kGoneNodesMax, 1, now);
  for (uint32_t id = 1; id <= kGoneNodesMax; ++id) {
    EXPECT_FALSE(membership.NodeToForget().has_value());
    ASSERT_TRUE(membership.Leave(NodeId(id), 1, now + seconds(id == 7 ? 1 : 2)).ok());
  }
  EXPECT_EQ(membership.NodeToForget(), "n6");
  membership.Remove("n6");
  EXPECT_FALSE(membership.NodeToForget().has_value());
  Register(&membership, "new", 1, 9000, now);
  EXPECT_FALSE(membership.NodeToForget().has_value()) << "it lives";
}

// The guard still counts it among those that vanished at once.
TEST(MembershipTest, ANodeLostAMomentAgoIsNotForgotten) {
  Cluster cluster = Running(3);
  cluster.Kill("n1");
  while (cluster.membership.CanRemove("n1").code() == StatusCode::kFailedPrecondition)
    cluster.Run(seconds(1));
  Register(&cluster.membership, "other", kGoneNodesMax, 1000, cluster.now);
  for (uint32_t i = 0; i < kGoneNodesMax; ++i)
    ASSERT_TRUE(cluster.membership.Leave(NodeId(1000 + i), 1, cluster.now).ok());
  EXPECT_EQ(cluster.membership.NodeToForget(), "other0");
  cluster.Run(seconds(11));
  EXPECT_EQ(cluster.membership.NodeToForget(), "n1");
}

}  // namespace
}  // namespace ems::controller
