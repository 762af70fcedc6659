// What must hold: what the controller says takes effect on the control thread's next step, and only
// a server that may serve says that it is ready.
#include "mp_server/lease/server_control.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ems::server {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;

struct NoNumbers final : KeptNumbers {
  ViewIdentity highest_view() const override { return {}; }
  uint64_t lineage() const override { return 0; }
  ClusterId cluster() const override { return ClusterId(0xa); }
};

struct NoHoldings final : Holdings {
  void StopReaders() override { ++stopped; }
  void SetNamespaces(const NamespaceTable&, double) override {}
  void SetOwnedSlots(const ssd::SlotGrant&) override {}
  void KeepBlocks(const std::bitset<kSlotCount>&) override {}
  int stopped = 0;
};

class ServerControlTest : public ::testing::Test {
 protected:
  // All slots are this server's.
  void Offer(uint64_t epoch, uint32_t others = 0) {
    std::vector<NodeInfo> nodes(1 + others);
    for (uint32_t i = 0; i <= others; ++i) {
      nodes[i].id = NodeId(i + 1);
      nodes[i].boot_id = 8 + i;
    }
    SlotTable slots;
    for (uint16_t i = 0; i < kSlotCount; ++i) slots.set_owner(SlotId(i), NodeId(1));
    ASSERT_TRUE(control_.views().Install(*DhtView::Make({1, epoch}, nodes, slots, false)));
  }
  void Step(const Status& disk = OkStatus()) {
    if (control_.Begin()) control_.Finish(disk);
  }
  std::string Unready() { return ToString(control_.Ready()); }

  ManualClock clock_;
  Ownership ownership_{&clock_};
  NoNumbers numbers_;
  NoHoldings holdings_;
  int poked_ = 0;
  ServerControl control_{
      {.boot_id = 8, .kept = &numbers_, .ownership = &ownership_, .holdings = &holdings_},
      [this] { ++poked_; }};
  LeaseEvents events_ = control_.Events();
};

TEST_F(ServerControlTest, OneThatTheViewShowsIsReadyThoughItOwnsNothing) {
  ownership_.SetSelf(NodeId(2));
  Offer(2);
  Step();
  ownership_.RenewLease(clock_.Now() + seconds(5));
  EXPECT_THAT(Unready(), HasSubstr("not admitted")) << "it is not shown";
  EXPECT_FALSE(control_.IsShown());
  std::vector<NodeInfo> nodes(2);
  for (uint32_t i = 0; i < 2; ++i) {
    nodes[i].id = NodeId(i + 1);
    nodes[i].boot_id = 7 + i;
  }
  SlotTable slots;
  for (uint16_t i = 0; i < kSlotCount; ++i) slots.set_owner(SlotId(i), NodeId(1));
  ASSERT_TRUE(control_.views().Install(*DhtView::Make({1, 3}, nodes, slots, false)));
  EXPECT_FALSE(control_.IsShown()) << "it is not installed";
  Step();
  EXPECT_TRUE(control_.IsShown());
  EXPECT_TRUE(control_.Ready().ok()) << "it is drained";
}

TEST_F(ServerControlTest, ReadyWhenItMayServe) {
  EXPECT_THAT(Unready(), HasSubstr("not registered"));
  ownership_.SetSelf(NodeId(1));
  EXPECT_THAT(Unready(), HasSubstr("no view yet"));
  Offer(2);
  Step();
  EXPECT_THAT(Unready(), HasSubstr("no lease"));
  ownership_.RenewLease(clock_.Now() + seconds(5));
  EXPECT_TRUE(control_.Ready().ok());
  Offer(3);
  Step(Error(StatusCode::kUnavailable, "disk full"));
  EXPECT_THAT(Unready(), HasSubstr("disk full")) << "it cannot follow the controller any more";
  Step();
  EXPECT_TRUE(control_.Ready().ok());
  events_.on_replaced();
  EXPECT_TRUE(control_.replaced());
  EXPECT_THAT(Unready(), HasSubstr("another server has this name"));
}

// The controller is told right after, and gives the slots away.
TEST_F(ServerControlTest, AServerThatIsReplacedIsReadNoMoreBeforeTheControllerIsTold) {
  EXPECT_EQ(holdings_.stopped, 0);
  events_.on_replaced();
  EXPECT_EQ(holdings_.stopped, 1) << "it does not wait for the control thread";
  EXPECT_EQ(poked_, 1);
}

TEST_F(ServerControlTest, OnlyViewsOfTheFoldersClusterAreTaken) {
  ownership_.SetSelf(NodeId(1));
  EXPECT_EQ(control_.views().cluster(), ClusterId(0xa));
  EXPECT_FALSE(
      control_.views().Install(*DhtView::Make({1, 2}, {}, SlotTable(), false, {}, ClusterId(0xb))));
  EXPECT_EQ(control_.Begin(), std::nullopt);
}

TEST_F(ServerControlTest, AControllerOfAnotherClusterIsWhyItIsNotReady) {
  ownership_.SetSelf(NodeId(1));
  Offer(2);
  Step();
  ownership_.RenewLease(clock_.Now() + seconds(5));
  events_.on_stranger(Error(StatusCode::kFailedPrecondition, "cluster b answers"));
  EXPECT_THAT(Unready(), HasSubstr("cluster b answers"));
  events_.on_stranger(OkStatus());
  EXPECT_TRUE(control_.Ready().ok());
}

TEST_F(ServerControlTest, ActiveViewsFreeTheSlotsWithTheNextStep) {
  ownership_.SetSelf(NodeId(1));
  Offer(2);
  Step();
  EXPECT_TRUE(ownership_.HoldsSlots());
  events_.on_active(2);
  EXPECT_EQ(poked_, 1);
  events_.on_active(2);
  EXPECT_EQ(poked_, 1) << "no news";
  EXPECT_TRUE(ownership_.HoldsSlots());
  Step();
  EXPECT_FALSE(ownership_.HoldsSlots());
}

TEST_F(ServerControlTest, ANewerViewOfTheControllerIsAskedForOnce) {
  EXPECT_FALSE(control_.IsBehind());
  events_.on_behind({1, 4});
  EXPECT_TRUE(control_.IsBehind());
  Step();
  EXPECT_FALSE(control_.IsBehind()) << "until the next heartbeat says so";
}

TEST_F(ServerControlTest, PeersAreAskedForTheInstalledViewAlone) {
  ownership_.SetSelf(NodeId(1));
  Offer(2, 2);
  Step();
  const auto asks = [this] { return control_.PeersToAsk(clock_.Now()).view != nullptr; };
  EXPECT_FALSE(asks()) << "it never had a lease";
  ownership_.RenewLease(clock_.Now() + seconds(1));
  const PeerRound round = control_.PeersToAsk(clock_.Now());
  ASSERT_NE(round.view, nullptr);
  control_.OnPeers(round, {{NodeId(2), {.view = {1, 2}, .heard = {}}}}, clock_.Now() + seconds(1));
  EXPECT_EQ(ownership_.lease_until(), clock_.Now() + seconds(1) + kQuorumValid);
  EXPECT_EQ(control_.Tell({1, 2}, clock_.Now() + seconds(1)).words.size(), 1U);
  Offer(3, 2);
  EXPECT_FALSE(asks()) << "that one is not installed yet";
  Step();
  clock_.Advance(seconds(1));
  EXPECT_TRUE(asks());
  events_.on_replaced();
  EXPECT_FALSE(asks());
}

}  // namespace
}  // namespace ems::server
