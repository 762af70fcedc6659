// What must hold: the newest view that one of the asked servers has comes; what is older, damaged,
// of another cluster or from another process than the view shows does not, and nobody holds the
// others up.
#include "mp_server/lease/peer_view.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/memory_server.h"
#include "tests/support/scripted_server.h"

namespace ems::server {
namespace {

using std::chrono::seconds;
using testing::MemoryServer;

constexpr ClusterId kCluster(0xc1);

std::shared_ptr<const DhtView> MakeView(ViewVersion version,
                                        const std::vector<std::string>& addresses,
                                        uint64_t boot_id = 77, ClusterId cluster = kCluster) {
  std::vector<NodeInfo> nodes(addresses.size());
  for (size_t i = 0; i < nodes.size(); ++i) {
    nodes[i].id = NodeId(static_cast<uint32_t>(i + 1));
    nodes[i].data_address = addresses[i];
    nodes[i].boot_id = boot_id;
  }
  return *DhtView::Make(version, nodes, SlotTable(), false, {}, cluster);
}

std::string Encoded(const DhtView& view) {
  std::vector<std::byte> body;
  AppendTo(view, &body);
  return std::string(AsText(body));
}

class PeerViewTest : public ::testing::Test {
 protected:
  PeerViewTest() { a_.store.cluster = b_.store.cluster = kCluster; }
  std::vector<std::string> Addresses() { return {"127.0.0.1:1", a_.address(), b_.address()}; }
  ViewCache::View Find(uint64_t boot_id = 77) {
    return peers_.Find(*MakeView({4, 9}, Addresses(), boot_id), NodeId(1), seconds(5));
  }
  // What `server` would tell.
  static void Tell(MemoryServer* server, const std::string& bytes) {
    server->store.view_bytes = bytes;
  }

  MemoryServer a_, b_;
  PeerView peers_{7};
};

TEST_F(PeerViewTest, TheNewestComes) {
  const auto newer = MakeView({4, 10}, {"127.0.0.1:1"}), newest = MakeView({5, 11}, {"10.0.0.1:2"});
  EXPECT_EQ(Find(), nullptr) << "nobody has one";
  Tell(&a_, Encoded(*newer));
  ASSERT_NE(Find(), nullptr);
  EXPECT_EQ(Find()->Fingerprint(), newer->Fingerprint());
  Tell(&b_, Encoded(*newest));
  ASSERT_NE(Find(), nullptr);
  EXPECT_EQ(Find()->version(), newest->version());
  EXPECT_EQ(Find()->cluster(), kCluster);
}

TEST_F(PeerViewTest, WhatIsNotNewerOrIsDamagedDoesNotCome) {
  Tell(&a_, Encoded(*MakeView({4, 9}, {"127.0.0.1:1"})));
  Tell(&b_, Encoded(*MakeView({3, 20}, {"127.0.0.1:1"})));
  EXPECT_EQ(Find(), nullptr);
  std::string damaged = Encoded(*MakeView({4, 10}, {"127.0.0.1:1"}));
  Tell(&b_, "no view at all");
  EXPECT_EQ(Find(), nullptr);
  damaged[damaged.size() / 2] ^= 1;
  Tell(&b_, damaged);
  EXPECT_EQ(Find(), nullptr);
}

TEST_F(PeerViewTest, AnotherProcessOrAnotherClusterIsNotAsked) {
  Tell(&a_, Encoded(*MakeView({4, 10}, {"127.0.0.1:1"})));
  EXPECT_EQ(Find(78), nullptr);
  a_.store.cluster = ClusterId(0xc2);
  EXPECT_EQ(Find(), nullptr);
  EXPECT_EQ(a_.store.views_told, 0);
}

TEST_F(PeerViewTest, WhoDoesNotKnowTheRequestOrIsGoneHoldsNobodyUp) {
  a_.store.view_bytes = std::nullopt;
  Tell(&b_, Encoded(*MakeView({4, 10}, {"127.0.0.1:1"})));
  EXPECT_NE(Find(), nullptr);
  const auto view = MakeView({4, 9}, {"127.0.0.1:1", "127.0.0.1:2", b_.address()});
  EXPECT_NE(peers_.Find(*view, NodeId(1), seconds(5)), nullptr);
}

TEST_F(PeerViewTest, FewAreAskedAtATimeAndAllSomeDay) {
  Tell(&b_, Encoded(*MakeView({4, 10}, {"127.0.0.1:1"})));
  std::vector<std::string> addresses(40, a_.address());
  addresses.push_back(b_.address());
  const auto view = MakeView({4, 9}, addresses);
  a_.store.view_bytes = "";
  int times = 0;
  while (peers_.Find(*view, NodeId(1), seconds(5)) == nullptr && times < 500) ++times;
  EXPECT_LT(times, 500);
  EXPECT_LE(a_.store.views_told, (times + 1) * static_cast<int>(PeerView::kAsked));
}

}  // namespace
}  // namespace ems::server
