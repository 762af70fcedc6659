// What must hold: never more channels than allowed, a call waits for one within its deadline, and a
// restarted server is a new peer.
#include "mp_sdk/internal/connection_pool.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "common/thread_pool.h"
#include "tests/support/memory_server.h"
#include "tests/support/temp_path.h"

namespace ems::internal {
namespace {

using fabric::RpcChannel;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::Eventually;
using testing::MemoryServer;

Deadline In(Duration time) { return Deadline::After(time); }

NodeInfo MakeNode(uint32_t id, const std::string& address) {
  NodeInfo node;
  node.id = NodeId(id);
  node.name = "server" + std::to_string(id);
  node.boot_id = 1;
  node.data_address = address;
  return node;
}

struct PeerFixture {
  PeerFixture() : peer(*fabric::ParseAddress(server.address()), 2, seconds(1)) {}
  MemoryServer server;
  Peer peer;
};

TEST(PeerTest, ReusesWhatIsIdle) {
  PeerFixture f;
  for (int i = 0; i < 10; ++i) {
    Result<std::unique_ptr<RpcChannel>> channel = f.peer.Take(false, In(seconds(1)));
    ASSERT_TRUE(channel.ok()) << channel.status();
    f.peer.Return(std::move(*channel));
  }
  EXPECT_EQ(f.server.store.counts().sessions, 1);
}

// A server spreads connections over its threads in the order in which they are opened.
TEST(PeerTest, FewCallersUseTheConnectionsThatWereOpenedFirst) {
  MemoryServer server;
  Peer peer(*fabric::ParseAddress(server.address()), 4, seconds(1));
  std::vector<std::unique_ptr<RpcChannel>> taken;
  std::vector<int> opened;
  for (int i = 0; i < 4; ++i) {
    auto channel = peer.Take(false, In(seconds(1)));
    ASSERT_TRUE(channel.ok()) << channel.status();
    opened.push_back((*channel)->fd());
    taken.push_back(*std::move(channel));
  }
  std::ranges::sort(opened);
  for (const size_t i : {1U, 3U, 0U, 2U}) peer.Return(std::move(taken[i]));
  for (const int fd : opened) {
    auto channel = peer.Take(false, In(seconds(1)));
    ASSERT_TRUE(channel.ok()) << channel.status();
    EXPECT_EQ((*channel)->fd(), fd);
    taken.push_back(*std::move(channel));
  }
}

TEST(PeerTest, IsBoundedAndWaitsWithinTheDeadline) {
  PeerFixture f;
  auto one = f.peer.Take(false, In(seconds(1)));
  auto two = f.peer.Take(false, In(seconds(1)));
  ASSERT_TRUE(one.ok() && two.ok());
  const TimePoint start = Clock::System().Now();
  auto three = f.peer.Take(false, In(milliseconds(50)));
  EXPECT_EQ(three.status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_GE(Clock::System().Now() - start, milliseconds(45));
  Thread returner("returner", [&] { f.peer.Return(std::move(*one)); });
  EXPECT_TRUE(f.peer.Take(false, In(seconds(5))).ok());
  returner.Join();
  EXPECT_EQ(f.server.store.counts().sessions, 2);
}

TEST(PeerTest, ABrokenChannelMakesRoom) {
  PeerFixture f;
  for (int i = 0; i < 5; ++i) {
    auto channel = f.peer.Take(false, In(seconds(1)));
    ASSERT_TRUE(channel.ok()) << channel.status();
    f.peer.Return(nullptr);
  }
}

TEST(PeerTest, FreshDropsWhatWasIdle) {
  PeerFixture f;
  auto one = f.peer.Take(false, In(seconds(1)));
  ASSERT_TRUE(one.ok());
  f.peer.Return(std::move(*one));
  auto fresh = f.peer.Take(true, In(seconds(1)));
  ASSERT_TRUE(fresh.ok());
  EXPECT_EQ(f.server.store.counts().sessions, 2);
  EXPECT_TRUE(Eventually([&] { return f.server.store.counts().live_sessions.load() == 1; }));
}

TEST(PeerTest, LearnsTheLargestValue) {
  MemoryServer server;
  server.store.value_bytes_max = 12345;
  Peer peer(*fabric::ParseAddress(server.address()), 2, seconds(1));
  auto one = peer.Take(false, In(seconds(1)));
  ASSERT_TRUE(one.ok());
  EXPECT_EQ(peer.value_bytes_max(), 12345U);
  peer.Return(std::move(*one));
}

// As a reused address: what it has is another cluster's, whatever the keys.
TEST(PeerTest, AServerOfAnotherClusterIsRefusedByName) {
  MemoryServer server;
  server.store.cluster = ClusterId(0xabcdef123456);
  Peer stranger(*fabric::ParseAddress(server.address()), 1, seconds(1), ClusterId(0x77));
  for (int i = 0; i < 2; ++i) {
    const Status status = stranger.Take(false, In(seconds(1))).status();
    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
    EXPECT_NE(Message(status).find("abcdef123456"), std::string_view::npos) << status;
    EXPECT_NE(Message(status).find("0000000000000077"), std::string_view::npos) << status;
  }
  EXPECT_EQ(server.store.counts().handled, 2) << "greetings alone";
  Peer own(*fabric::ParseAddress(server.address()), 1, seconds(1), server.store.cluster);
  EXPECT_TRUE(own.Take(false, In(seconds(1))).ok());
  Peer any(*fabric::ParseAddress(server.address()), 1, seconds(1));
  EXPECT_TRUE(any.Take(false, In(seconds(1))).ok());
}

TEST(PeerTest, ARefusedConnectionIsUnavailableAndMakesRoomAgain) {
  fabric::Address nobody;
  {
    MemoryServer gone;
    nobody = *fabric::ParseAddress(gone.address());
  }
  Peer peer(nobody, 1, seconds(1));
  for (int i = 0; i < 4; ++i) {
    const TimePoint start = Clock::System().Now();
    EXPECT_EQ(peer.Take(false, In(seconds(1))).status().code(), StatusCode::kUnavailable);
    EXPECT_LT(Clock::System().Now() - start, milliseconds(50));
  }
}

TEST(ConnectionPoolTest, ARestartedServerIsAnotherPeer) {
  ConnectionPool pool{ClientOptions{}};
  NodeInfo node = MakeNode(1, "127.0.0.1:1");
  const auto first = pool.PeerOf(node, kNoCluster);
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(*first, *pool.PeerOf(node, kNoCluster));
  node.boot_id = 2;
  const auto second = pool.PeerOf(node, kNoCluster);
  ASSERT_TRUE(second.ok());
  EXPECT_NE(*first, *second);
}

TEST(ConnectionPoolTest, ForgetsServersThatLeftTheView) {
  ConnectionPool pool{ClientOptions{}};
  const NodeInfo a = MakeNode(1, "127.0.0.1:1");
  const NodeInfo b = MakeNode(2, "127.0.0.1:2");
  const std::weak_ptr<Peer> peer_a = *pool.PeerOf(a, kNoCluster);
  const std::weak_ptr<Peer> peer_b = *pool.PeerOf(b, kNoCluster);
  pool.Retain(**DhtView::Make(ViewVersion(1, 1), {b}, SlotTable(), false));
  EXPECT_TRUE(peer_a.expired());
  EXPECT_FALSE(peer_b.expired());
}

TEST(ConnectionPoolTest, ChoosesTheTransportAsked) {
  NodeInfo node = MakeNode(1, "127.0.0.1:1");
  ClientOptions only_unix;
  only_unix.transport = TransportChoice::kUnix;
  EXPECT_EQ(ConnectionPool(only_unix).PeerOf(node, kNoCluster).status().code(),
            StatusCode::kUnavailable);
  const testing::TempPath path("socket");
  const MemoryServer server(testing::ServerOptionsAt(path.path()));
  node.unix_path = path.path();
  node.host_id = "elsewhere";
  EXPECT_EQ(ConnectionPool(only_unix).PeerOf(node, kNoCluster).status().code(),
            StatusCode::kUnavailable);
  node.host_id = fabric::HostId();
  EXPECT_TRUE(ConnectionPool(only_unix).PeerOf(node, kNoCluster).ok());
  node.data_address = "nonsense";
  ClientOptions only_tcp;
  only_tcp.transport = TransportChoice::kTcp;
  EXPECT_FALSE(ConnectionPool(only_tcp).PeerOf(node, kNoCluster).ok());
  EXPECT_TRUE(ConnectionPool(ClientOptions{}).PeerOf(node, kNoCluster).ok())
      << "the socket will do";
  ::unlink(node.unix_path.c_str());
  node.data_address = "127.0.0.1:1";
  EXPECT_EQ((*ConnectionPool(ClientOptions{}).PeerOf(node, kNoCluster))->address().unix_path, "")
      << "a socket that is not here, as in a container, is no reason to miss";
  EXPECT_EQ((*ConnectionPool(only_unix).PeerOf(node, kNoCluster))->address().unix_path,
            node.unix_path);
}

TEST(ConnectionPoolTest, TakesTheSocketOfItsMachineWhateverTheHostsAreCalled) {
  const testing::TempPath path("socket");
  const MemoryServer server(testing::ServerOptionsAt(path.path()));
  NodeInfo node = MakeNode(1, "127.0.0.1:1");
  node.unix_path = path.path();
  node.host_id = "server/boot-1";
  const auto path_for = [&](const std::string& host_id) {
    return (*ConnectionPool(ClientOptions{}, host_id).PeerOf(node, kNoCluster))
        ->address()
        .unix_path;
  };
  EXPECT_EQ(path_for("engine/boot-1"), node.unix_path);
  EXPECT_EQ(path_for("server/boot-2"), "");
  EXPECT_EQ(path_for("engine/"), "");
}

// A container has another one's path, with another server behind it.
TEST(ConnectionPoolTest, ASocketOfAnotherServerIsGivenUpForTcp) {
  const testing::TempPath path("socket");
  MemoryServer stranger(testing::ServerOptionsAt(path.path()));
  stranger.store.cluster = ClusterId(0xabcdef);
  NodeInfo node = MakeNode(1, "127.0.0.1:1");
  node.unix_path = path.path();
  node.host_id = fabric::HostId();
  ConnectionPool pool{ClientOptions{}};
  const std::shared_ptr<Peer> misled = *pool.PeerOf(node, ClusterId(7));
  ASSERT_TRUE(misled->address().is_unix());
  EXPECT_EQ(misled->Take(false, In(seconds(1))).status().code(), StatusCode::kUnavailable);
  EXPECT_TRUE(misled->misled());
  const std::shared_ptr<Peer> other = *pool.PeerOf(node, ClusterId(7));
  EXPECT_FALSE(other->address().is_unix());
  EXPECT_EQ(other, *pool.PeerOf(node, ClusterId(7)));

  ClientOptions only_unix;
  only_unix.transport = TransportChoice::kUnix;
  ConnectionPool strict(only_unix);
  EXPECT_FALSE((*strict.PeerOf(node, kNoCluster))->Take(false, In(seconds(1))).ok());
  EXPECT_EQ(strict.PeerOf(node, kNoCluster).status().code(), StatusCode::kUnavailable);

  node.boot_id = stranger.store.boot_id;  // it is the one
  EXPECT_TRUE((*pool.PeerOf(node, kNoCluster))->Take(false, In(seconds(1))).ok());
}

}  // namespace
}  // namespace ems::internal
