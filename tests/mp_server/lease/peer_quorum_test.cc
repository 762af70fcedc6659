// What must hold: each server that answers in time gives its view and what it has heard; the dead,
// the silent and those elsewhere give nothing, and take no more than the patience together.
#include "mp_server/lease/peer_quorum.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "proto/word_table.h"
#include "tests/support/memory_server.h"
#include "tests/support/scripted_server.h"

namespace ems::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::MemoryServer;

constexpr ViewVersion kVersion(4, 9);

std::shared_ptr<const DhtView> MakeView(const std::vector<std::string>& addresses,
                                        uint64_t boot_id = 77, ClusterId cluster = kNoCluster) {
  std::vector<NodeInfo> nodes(addresses.size());
  for (size_t i = 0; i < nodes.size(); ++i) {
    nodes[i].id = NodeId(static_cast<uint32_t>(i + 1));
    nodes[i].data_address = addresses[i];
    nodes[i].boot_id = boot_id;
  }
  return *DhtView::Make(kVersion, nodes, SlotTable(), false, {}, cluster);
}

// All but the first, which asks.
PeerRound MakeRound(const std::vector<std::string>& addresses, uint64_t boot_id = 77,
                    ClusterId cluster = kNoCluster) {
  PeerRound round{.view = MakeView(addresses, boot_id, cluster), .peers = {}};
  for (const NodeInfo& node : round.view->nodes())
    if (node.id != NodeId(1)) round.peers.push_back(node.id);
  return round;
}

std::string EncodedWord(uint32_t node) {
  std::vector<std::byte> body;
  wire::AppendTo({.view = kVersion, .fingerprint = 5, .words = {{8, node, 9}}}, &body);
  return std::string(AsText(body));
}

TEST(PeerQuorumTest, EachSaysWhichViewItHas) {
  MemoryServer a, b;
  a.store.SetView(kVersion);
  b.store.SetView(ViewVersion(4, 8));
  PeerQuorum quorum;
  const PeerRound round = MakeRound({"127.0.0.1:1", a.address(), b.address()});
  PeerAnswers all = quorum.Ask(round, seconds(2));
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(all[NodeId(2)].view, kVersion);
  EXPECT_EQ(all[NodeId(3)].view, ViewVersion(4, 8));
  EXPECT_TRUE(all[NodeId(2)].heard.words.empty());
  a.store.SetView(ViewVersion(5, 1));
  EXPECT_EQ(quorum.Ask(round, seconds(2)).at(NodeId(2)).view, ViewVersion(5, 1));
  EXPECT_EQ(a.store.counts().sessions, 1) << "connections are kept";
}

TEST(PeerQuorumTest, EachTellsWhatItHasHeard) {
  MemoryServer a, b;
  a.store.peer_words = EncodedWord(3);
  b.store.peer_words = EncodedWord(4);
  PeerQuorum quorum;
  const PeerAnswers all =
      quorum.Ask(MakeRound({"127.0.0.1:1", a.address(), b.address()}), seconds(2));
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(all.at(NodeId(2)).heard.words.at(0).node_id, 3U);
  EXPECT_EQ(all.at(NodeId(3)).heard.words.at(0).node_id, 4U);
  EXPECT_EQ(all.at(NodeId(3)).heard.fingerprint, 5U);
}

// Software from before Peers: what it says of itself stands in the header.
TEST(PeerQuorumTest, WhoDoesNotKnowTheRequestSaysItsViewAllTheSame) {
  MemoryServer a;
  a.store.SetView(kVersion);
  a.store.peer_words = std::nullopt;
  PeerQuorum quorum;
  const PeerRound round = MakeRound({"127.0.0.1:1", a.address()});
  for (int times = 0; times < 2; ++times)
    EXPECT_EQ(quorum.Ask(round, seconds(2)).at(NodeId(2)).view, kVersion);
  EXPECT_EQ(a.store.counts().sessions, 1);
}

TEST(PeerQuorumTest, WhoSendsNoTableGivesNoWord) {
  MemoryServer a;
  a.store.SetView(kVersion);
  a.store.peer_words = EncodedWord(3) + "x";
  PeerQuorum quorum;
  const PeerRound round = MakeRound({"127.0.0.1:1", a.address()});
  EXPECT_TRUE(quorum.Ask(round, seconds(2)).empty());
  a.store.peer_words = EncodedWord(3);
  EXPECT_EQ(quorum.Ask(round, seconds(2)).size(), 1U);
}

// The controller counts with the processes of the view: another one has no voice.
TEST(PeerQuorumTest, AnotherProcessAtTheAddressIsNotAsked) {
  MemoryServer a;
  a.store.SetView(kVersion);
  PeerQuorum quorum;
  EXPECT_TRUE(quorum.Ask(MakeRound({"127.0.0.1:1", a.address()}, 78), seconds(1)).empty());
  EXPECT_EQ(quorum.Ask(MakeRound({"127.0.0.1:1", a.address()}, 77), seconds(1)).size(), 1U);
  EXPECT_TRUE(quorum.Ask(MakeRound({"127.0.0.1:1", a.address()}, 78), seconds(1)).empty())
      << "nor over the connection that was kept";
}

TEST(PeerQuorumTest, AServerOfAnotherClusterHasNoVoice) {
  MemoryServer a;
  a.store.SetView(kVersion);
  a.store.cluster = ClusterId(8);
  const std::vector<std::string> addresses = {"127.0.0.1:1", a.address()};
  PeerQuorum quorum;
  EXPECT_TRUE(quorum.Ask(MakeRound(addresses, 77, ClusterId(9)), seconds(1)).empty());
  EXPECT_EQ(quorum.Ask(MakeRound(addresses, 77, ClusterId(8)), seconds(1)).size(), 1U);
}

TEST(PeerQuorumTest, SilentPeersCostNoMoreThanThePatience) {
  std::vector<std::unique_ptr<testing::ScriptedServer>> silent;
  std::vector<std::string> addresses = {"127.0.0.1:1"};
  for (int i = 0; i < 6; ++i) {
    silent.push_back(std::make_unique<testing::ScriptedServer>([i](testing::WirePeer* peer, int) {
      if (i % 2 == 0 || testing::ServeHello(peer, {.boot_id = 77, .value_bytes_max = kGiB}))
        (void)peer->WaitClosed(milliseconds(1500));
    }));
    addresses.push_back(silent.back()->address());
  }
  MemoryServer a, b;
  a.store.SetView(kVersion);
  b.store.SetView(kVersion);
  addresses.push_back(a.address());
  addresses.push_back(b.address());
  PeerQuorum quorum;
  const TimePoint start = Clock::System().Now();
  EXPECT_EQ(quorum.Ask(MakeRound(addresses), milliseconds(300)).size(), 2U);
  EXPECT_LT(Clock::System().Now() - start, milliseconds(600));
}

TEST(PeerQuorumTest, ARestartedPeerIsFoundAgain) {
  fabric::RpcServerOptions options = MemoryServer::DefaultOptions();
  auto first = std::make_unique<MemoryServer>(options);
  const std::string address = first->address();
  PeerQuorum quorum;
  const PeerRound round = MakeRound({"127.0.0.1:1", address});
  EXPECT_EQ(quorum.Ask(round, seconds(1)).size(), 1U);
  first->server.reset();
  EXPECT_EQ(quorum.Ask(round, seconds(1)).size(), 0U);
  options.listen = address;
  MemoryServer second(options);
  ASSERT_TRUE(second.status.ok()) << second.status;
  EXPECT_EQ(quorum.Ask(round, seconds(1)).size(), 1U);
}

// It may stand for several addresses, of which the server listens on one: each is tried in turn.
TEST(PeerQuorumTest, AnAddressMayBeAName) {
  MemoryServer a;
  const std::string port = a.address().substr(a.address().rfind(':'));
  PeerQuorum quorum;
  const PeerRound round = MakeRound({"127.0.0.1:1", "localhost" + port});
  bool answered = false;
  for (int times = 0; times < 4 && !answered; ++times)
    answered = quorum.Ask(round, seconds(1)).size() == 1;
  EXPECT_TRUE(answered);
}

TEST(PeerQuorumTest, FewConnectionsAreKept) {
  MemoryServer a;
  std::vector<std::string> addresses(PeerQuorum::kChannelsMax + 9, a.address());
  PeerQuorum quorum;
  PeerRound round = MakeRound(addresses);
  const std::vector<NodeId> all = round.peers;
  for (size_t at = 0; at < all.size(); at += 4) {
    round.peers.assign(all.begin() + static_cast<std::ptrdiff_t>(at),
                       all.begin() + static_cast<std::ptrdiff_t>(std::min(at + 4, all.size())));
    EXPECT_EQ(quorum.Ask(round, seconds(2)).size(), round.peers.size());
  }
  EXPECT_TRUE(testing::Eventually([&] {
    return a.store.counts().live_sessions <= static_cast<int>(PeerQuorum::kChannelsMax);
  }));
  EXPECT_EQ(a.store.counts().sessions, static_cast<int>(all.size()));
}

}  // namespace
}  // namespace ems::server
