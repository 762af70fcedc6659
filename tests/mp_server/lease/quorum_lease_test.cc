// What must hold: only a majority of the processes that the view shows prolongs a lease, at that
// very view, and only one that the controller gave once.
#include "mp_server/lease/quorum_lease.h"

#include <gtest/gtest.h>

#include <map>
#include <vector>

namespace ems::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr ViewVersion kVersion(3, 7);
constexpr uint64_t kBoot = 8;

std::shared_ptr<const DhtView> MakeView(uint32_t servers, uint64_t own_boot = kBoot) {
  std::vector<NodeInfo> nodes(servers);
  for (uint32_t i = 0; i < servers; ++i) {
    nodes[i].id = NodeId(i + 1);
    nodes[i].boot_id = i == 0 ? own_boot : 100 + i;
  }
  return *DhtView::Make(kVersion, nodes, SlotTable(), false);
}

class QuorumLeaseTest : public ::testing::Test {
 protected:
  QuorumLeaseTest() {
    ownership_.SetSelf(NodeId(1));
    ownership_.Install(*MakeView(3));
    ownership_.Settle();
    ownership_.RenewLease(clock_.Now() + milliseconds(100));
  }
  // How much longer the lease is when these servers, and no others, say which view they have.
  Duration Gain(const std::shared_ptr<const DhtView>& view,
                const std::map<NodeId, ViewVersion>& views) {
    const TimePoint before = ownership_.lease_until();
    PeerRound round = quorum_.Begin(view, clock_.Now());
    round.view = view;
    for (const auto& [id, version] : views) round.peers.push_back(id);
    PeerAnswers answers;
    for (const auto& [id, version] : views) answers[id].view = version;
    quorum_.OnAnswers(round, answers, clock_.Now());
    return ownership_.lease_until() - before;
  }
  bool IsDue(const std::shared_ptr<const DhtView>& view) {
    return quorum_.Begin(view, clock_.Now()).view != nullptr;
  }

  ManualClock clock_;
  Ownership ownership_{&clock_};
  QuorumLease quorum_{kBoot, &ownership_};
};

TEST_F(QuorumLeaseTest, AMajorityAtThisViewProlongsTheLease) {
  EXPECT_EQ(Gain(MakeView(3), {{NodeId(2), kVersion}}), kQuorumValid - milliseconds(100));
}

TEST_F(QuorumLeaseTest, HalfIsNotAMajority) {
  const auto view = MakeView(4);
  EXPECT_EQ(Gain(view, {{NodeId(2), kVersion}}), Duration::zero());
  EXPECT_GT(Gain(view, {{NodeId(2), kVersion}, {NodeId(3), kVersion}}), Duration::zero());
}

// The lease rests on the oldest of the words that are needed for a majority.
TEST_F(QuorumLeaseTest, WhatWasSaidBeforeCountsFromWhenItWasSaid) {
  const auto view = MakeView(5);
  const TimePoint first = clock_.Now();
  EXPECT_EQ(Gain(view, {{NodeId(2), kVersion}}), Duration::zero());
  clock_.Advance(kQuorumValid / 2);
  EXPECT_GT(Gain(view, {{NodeId(3), kVersion}}), Duration::zero());
  EXPECT_EQ(ownership_.lease_until(), first + kQuorumValid);
  clock_.Advance(kQuorumValid);
  EXPECT_EQ(Gain(view, {{NodeId(3), kVersion}}), Duration::zero()) << "the first one is too old";
}

TEST_F(QuorumLeaseTest, RelayedWordsMakeAMajority) {
  const auto view = MakeView(5);
  PeerRound round = quorum_.Begin(view, clock_.Now());
  round.peers = {NodeId(2)};
  PeerAnswers answers;
  answers[NodeId(2)].view = kVersion;
  answers[NodeId(2)].heard = {.view = kVersion,
                              .fingerprint = ownership_.installed().fingerprint,
                              .words = {{.boot_id = 102, .node_id = 3, .age_us = 300'000}}};
  quorum_.OnAnswers(round, answers, clock_.Now());
  EXPECT_EQ(ownership_.lease_until(), clock_.Now() + kQuorumValid - milliseconds(300));
}

TEST_F(QuorumLeaseTest, WhatWasHeardIsToldOfThatViewAlone) {
  const auto view = MakeView(3);
  EXPECT_TRUE(quorum_.Tell(kVersion, clock_.Now()).words.empty()) << "nothing was heard yet";
  Gain(view, {{NodeId(2), kVersion}});
  clock_.Advance(milliseconds(7));
  const wire::WordTable told = quorum_.Tell(kVersion, clock_.Now());
  EXPECT_EQ(told.view, kVersion);
  EXPECT_EQ(told.fingerprint, view->Fingerprint());
  ASSERT_EQ(told.words.size(), 1U);
  EXPECT_EQ(told.words[0].node_id, 2U);
  EXPECT_EQ(told.words[0].boot_id, 101U);
  EXPECT_EQ(told.words[0].age_us, 7000U);
  EXPECT_TRUE(quorum_.Tell(ViewVersion(3, 6), clock_.Now()).words.empty());
  ownership_.OnControllerAnswer(false);
  EXPECT_TRUE(quorum_.Tell(kVersion, clock_.Now()).words.empty()) << "whoever is refused is silent";
}

TEST_F(QuorumLeaseTest, AnotherViewIsNoVoice) {
  for (const ViewVersion other : {ViewVersion(3, 8), ViewVersion(3, 6), ViewVersion()})
    EXPECT_EQ(Gain(MakeView(3), {{NodeId(2), other}}), Duration::zero());
}

TEST_F(QuorumLeaseTest, WhoIsNotInTheViewHasNoVoice) {
  EXPECT_EQ(Gain(MakeView(3), {{NodeId(9), kVersion}}), Duration::zero());
  EXPECT_EQ(Gain(MakeView(3, kBoot + 1), {{NodeId(2), kVersion}}), Duration::zero())
      << "the view shows another process of this name";
  EXPECT_EQ(Gain(MakeView(3, kBoot + 1), {{NodeId(2), kVersion}, {NodeId(3), kVersion}}),
            Duration::zero());
}

TEST_F(QuorumLeaseTest, AloneIsAMajorityOfOne) {
  EXPECT_GT(Gain(MakeView(1), {}), Duration::zero());
}

TEST_F(QuorumLeaseTest, PeersAreAskedShortlyBeforeTheLeaseEnds) {
  const auto view = MakeView(3);
  const PeerRound round = quorum_.Begin(view, clock_.Now());
  EXPECT_EQ(round.view, view);
  EXPECT_EQ(round.peers.size(), 2U);
  EXPECT_EQ(round.next, PeerWords::kAskAllEvery);
  ownership_.RenewLease(clock_.Now() + seconds(5));
  EXPECT_FALSE(IsDue(view));
  clock_.Advance(seconds(9));
  EXPECT_TRUE(IsDue(view)) << "also after it has ended";
  EXPECT_FALSE(IsDue(nullptr));
}

TEST_F(QuorumLeaseTest, WhoNeverHadALeaseAsksNobody) {
  Ownership fresh(&clock_);
  fresh.SetSelf(NodeId(1));
  fresh.Install(*MakeView(3));
  QuorumLease quorum(kBoot, &fresh);
  EXPECT_EQ(quorum.Begin(MakeView(3), clock_.Now()).view, nullptr);
}

TEST_F(QuorumLeaseTest, WhomTheControllerRefusesProlongsNobodysLease) {
  ownership_.OnControllerAnswer(false);
  EXPECT_FALSE(IsDue(MakeView(3)));
  EXPECT_EQ(Gain(MakeView(3), {{NodeId(2), kVersion}}), Duration::zero()) << "asked before";
  EXPECT_EQ(ownership_.told_version(), ViewVersion());
  ownership_.OnControllerAnswer(true);
  EXPECT_GT(Gain(MakeView(3), {{NodeId(2), kVersion}}), Duration::zero());
  EXPECT_EQ(ownership_.told_version(), kVersion);
  ownership_.Revoke();
  EXPECT_EQ(ownership_.told_version(), ViewVersion()) << "the controller does not count with it";
}

TEST_F(QuorumLeaseTest, WhoIsRefusedWhileItAsksProlongsNothing) {
  PeerRound round = quorum_.Begin(MakeView(3), clock_.Now());
  const TimePoint until = ownership_.lease_until();
  ownership_.OnControllerAnswer(false);
  quorum_.OnAnswers(round, {{NodeId(2), {.view = kVersion, .heard = {}}}}, clock_.Now());
  EXPECT_EQ(ownership_.lease_until(), until);
}

TEST_F(QuorumLeaseTest, AViewThatIsNotInstalledYetIsNotAskedFor) {
  const auto next = *DhtView::Make(ViewVersion(3, 8), {}, SlotTable(), false);
  EXPECT_FALSE(IsDue(next));
}

}  // namespace
}  // namespace ems::server
