// What must hold: a server that is shown to be behind has the view of another server soon, without
// the controller; and asks nobody when nothing shows that it is.
#include "mp_server/lease/peer_rounds.h"

#include <gtest/gtest.h>

#include "tests/support/eventually.h"
#include "tests/support/memory_server.h"

namespace ems::server {
namespace {

using testing::Eventually;
using testing::MemoryServer;

constexpr ClusterId kCluster(0xc1);

struct NoNumbers final : KeptNumbers {
  ViewIdentity highest_view() const override { return {}; }
  uint64_t lineage() const override { return 0; }
  ClusterId cluster() const override { return kCluster; }
};
struct NoHoldings final : Holdings {
  void StopReaders() override {}
  void SetNamespaces(const NamespaceTable&, double) override {}
  void SetOwnedSlots(const ssd::SlotGrant&) override {}
  void KeepBlocks(const std::bitset<kSlotCount>&) override {}
};

class PeerRoundsTest : public ::testing::Test {
 protected:
  PeerRoundsTest() {
    peer_.store.cluster = kCluster;
    ownership_.SetSelf(NodeId(1));
    EXPECT_TRUE(control_.views().Install(View(9)));
    Step();
  }
  ViewCache::View View(uint64_t epoch) {
    std::vector<NodeInfo> nodes(2);
    nodes[0].id = NodeId(1);
    nodes[0].boot_id = 8;
    nodes[0].data_address = "127.0.0.1:1";
    nodes[1].id = NodeId(2);
    nodes[1].boot_id = 77;
    nodes[1].data_address = peer_.address();
    SlotTable slots;
    for (uint16_t i = 0; i < kSlotCount; ++i) slots.set_owner(SlotId(i), NodeId(1));
    return *DhtView::Make({1, epoch}, nodes, slots, false, {}, kCluster);
  }
  void Step() {
    if (control_.Begin()) control_.Finish(OkStatus());
  }

  MemoryServer peer_;
  Ownership ownership_{&Clock::System()};
  NoNumbers numbers_;
  NoHoldings holdings_;
  int poked_ = 0;
  ServerControl control_{
      {.boot_id = 8, .kept = &numbers_, .ownership = &ownership_, .holdings = &holdings_}, [] {}};
  PeerRounds rounds_{&control_, &ownership_, 3, [this] { ++poked_; }};
};

TEST_F(PeerRoundsTest, NothingIsAskedWhereNothingShowsAnotherView) {
  EXPECT_FALSE(rounds_.FindNewerView());
  EXPECT_EQ(rounds_.AskForWords(), PeerRounds::kEvery);
  EXPECT_EQ(peer_.store.counts().sessions, 0);
}

TEST_F(PeerRoundsTest, AViewThatARequestHasComesFromAnotherServer) {
  std::vector<std::byte> body;
  AppendTo(*View(10), &body);
  peer_.store.view_bytes = std::string(AsText(body));
  rounds_.OnNewerView();
  EXPECT_EQ(poked_, 1);
  EXPECT_TRUE(rounds_.FindNewerView()) << "the controller is to be asked";
  EXPECT_EQ(peer_.store.views_told, 0) << "and it alone, at first";
  EXPECT_TRUE(Eventually([&] {
    rounds_.OnNewerView();
    (void)rounds_.FindNewerView();
    return control_.views().view()->version() == ViewVersion(1, 10);
  }));
  Step();
  EXPECT_EQ(ownership_.version(), ViewVersion(1, 10));
}

TEST_F(PeerRoundsTest, AnAnswerThatShowsANewerViewCountsLikeARequest) {
  ownership_.RenewLease(Clock::System().Now() + std::chrono::milliseconds(1));  // it is due
  peer_.store.SetView(ViewVersion(1, 10));
  EXPECT_LT(rounds_.AskForWords(), Duration(std::chrono::minutes(1)));
  EXPECT_EQ(poked_, 1);
  EXPECT_TRUE(rounds_.FindNewerView());
}

TEST_F(PeerRoundsTest, AServerTellsItsViewToWhoIsBehindUnlessItIsRefused) {
  EXPECT_EQ(control_.NewerThan(ViewVersion(1, 9)), nullptr);
  ASSERT_NE(control_.NewerThan(ViewVersion(1, 8)), nullptr);
  EXPECT_EQ(control_.NewerThan(ViewVersion(1, 8))->version(), ViewVersion(1, 9));
  EXPECT_TRUE(control_.views().Install(View(10)));
  EXPECT_EQ(control_.NewerThan(ViewVersion(1, 8)), nullptr) << "it is not installed yet";
  Step();
  EXPECT_NE(control_.NewerThan(ViewVersion(1, 9)), nullptr);
  ownership_.OnControllerAnswer(false);
  EXPECT_EQ(control_.NewerThan(ViewVersion(1, 9)), nullptr);
}

}  // namespace
}  // namespace ems::server
