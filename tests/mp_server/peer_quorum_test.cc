// What must hold: a majority at the very view says yes; the dead, the silent and those elsewhere do
// not count, and the question ends in time.
#include "mp_server/peer_quorum.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/support/memory_server.h"
#include "tests/support/scripted_server.h"

namespace ems::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::MemoryServer;

constexpr ViewVersion kVersion(4, 9);

std::shared_ptr<const DhtView> MakeView(const std::vector<std::string>& addresses) {
  std::vector<NodeInfo> nodes(addresses.size());
  for (size_t i = 0; i < nodes.size(); ++i) {
    nodes[i].id = NodeId(static_cast<uint32_t>(i + 1));
    nodes[i].data_address = addresses[i];
  }
  return *DhtView::Make(kVersion, nodes, SlotTable(), false);
}

TEST(PeerQuorumTest, AMajorityAtThisViewSaysYes) {
  MemoryServer a, b;
  a.store.SetView(kVersion);
  b.store.SetView(ViewVersion(4, 8));
  PeerQuorum quorum;
  const auto view = MakeView({"127.0.0.1:1", a.address(), b.address()});
  EXPECT_TRUE(quorum.Ask(*view, NodeId(1), seconds(2))) << "self and a of three";
  a.store.SetView(ViewVersion(5, 1));
  EXPECT_FALSE(quorum.Ask(*view, NodeId(1), seconds(2))) << "a newer view is another view";
  b.store.SetView(kVersion);
  EXPECT_TRUE(quorum.Ask(*view, NodeId(1), seconds(2)));
  EXPECT_EQ(a.store.counts().sessions, 1) << "connections are kept";
}

TEST(PeerQuorumTest, HalfIsNotAMajority) {
  MemoryServer a;
  a.store.SetView(kVersion);
  PeerQuorum quorum;
  EXPECT_TRUE(quorum.Ask(*MakeView({"127.0.0.1:1"}), NodeId(1), seconds(1)));
  EXPECT_TRUE(quorum.Ask(*MakeView({"127.0.0.1:1", a.address()}), NodeId(1), seconds(1)));
  a.store.SetView(ViewVersion(1, 1));
  EXPECT_FALSE(quorum.Ask(*MakeView({"127.0.0.1:1", a.address()}), NodeId(1), seconds(1)));
}

TEST(PeerQuorumTest, OneWhoIsNotInTheViewHasNoVoice) {
  MemoryServer a;
  a.store.SetView(kVersion);
  PeerQuorum quorum;
  const auto view = MakeView({a.address(), "127.0.0.1:1"});
  EXPECT_FALSE(quorum.Ask(*view, NodeId(9), seconds(1)));
}

TEST(PeerQuorumTest, SilentPeersCostNoMoreThanThePatience) {
  testing::ScriptedServer silent(
      [](testing::WirePeer* peer, int) { (void)peer->WaitClosed(milliseconds(1500)); });
  testing::ScriptedServer greets([](testing::WirePeer* peer, int) {
    if (testing::ServeHello(peer)) (void)peer->WaitClosed(milliseconds(1500));
  });
  MemoryServer a, b;
  a.store.SetView(kVersion);
  b.store.SetView(kVersion);
  PeerQuorum quorum;
  const auto view =
      MakeView({"127.0.0.1:1", silent.address(), greets.address(), a.address(), b.address()});
  const TimePoint start = Clock::System().Now();
  EXPECT_TRUE(quorum.Ask(*view, NodeId(1), milliseconds(300))) << "three of five";
  EXPECT_LT(Clock::System().Now() - start, milliseconds(600));
}

TEST(PeerQuorumTest, ARestartedPeerIsFoundAgain) {
  fabric::RpcServerOptions options = MemoryServer::DefaultOptions();
  auto first = std::make_unique<MemoryServer>(options);
  first->store.SetView(kVersion);
  const std::string address = first->address();
  PeerQuorum quorum;
  const auto view = MakeView({"127.0.0.1:1", address});
  EXPECT_TRUE(quorum.Ask(*view, NodeId(1), seconds(1)));
  first->server.reset();
  EXPECT_FALSE(quorum.Ask(*view, NodeId(1), seconds(1)));
  options.listen = address;
  MemoryServer second(options);
  ASSERT_TRUE(second.status.ok()) << second.status;
  second.store.SetView(kVersion);
  EXPECT_TRUE(quorum.Ask(*view, NodeId(1), seconds(1)));
}

}  // namespace
}  // namespace ems::server
