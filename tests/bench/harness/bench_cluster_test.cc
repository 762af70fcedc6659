// What must hold: servers on this machine are found through their Unix sockets; others are left
// out, or refused by name where all are needed; no controller is an error.
#include "bench/harness/bench_cluster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <latch>

#include "common/thread_pool.h"
#include "fabric/net/socket.h"

namespace ems::bench {
namespace {

// A listener on a Unix socket, this process.
class BenchClusterTest : public ::testing::Test {
 protected:
  BenchClusterTest() {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path_.data(), path_.size());
    EXPECT_EQ(bind(listener_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(listen(listener_, 64), 0);
  }
  ~BenchClusterTest() override {
    close(listener_);
    unlink(path_.c_str());
  }
  static NodeInfo Node(uint32_t id, std::string unix_path) {
    NodeInfo node;
    node.id = NodeId(id);
    node.name = "node-" + std::to_string(id);
    node.unix_path = std::move(unix_path);
    node.host_id = fabric::HostId();
    return node;
  }
  static std::shared_ptr<const DhtView> ViewOf(std::vector<NodeInfo> nodes) {
    return DhtView::Make(ViewVersion(1, 1), std::move(nodes), SlotTable(), false).value();
  }
  const std::string path_ = "/tmp/bench-cluster-test-" + std::to_string(getpid());
  const int listener_ = socket(AF_UNIX, SOCK_STREAM, 0);
};

TEST_F(BenchClusterTest, FindsTheListenerOfAUnixSocketAndSkipsWhatIsNotThere) {
  std::vector<NodeInfo> nodes = {Node(1, path_), Node(2, ""), Node(3, path_ + ".absent"),
                                 Node(4, std::string(500, 'x')), Node(5, path_)};
  nodes[4].host_id = "another";  // the same path on another machine
  EXPECT_EQ(LocalServerPids(*ViewOf(nodes)), std::vector<pid_t>{getpid()});
  const std::string here = fabric::HostId();
  nodes[0].host_id = "container" + here.substr(here.rfind('/'));
  EXPECT_EQ(LocalServerPids(*ViewOf(nodes)), std::vector<pid_t>{getpid()});
}

TEST_F(BenchClusterTest, EveryServerHasToBeWithinReachWhereThatIsAsked) {
  const auto required = RequireLocalServers(*ViewOf({Node(1, path_), Node(2, path_)}));
  ASSERT_TRUE(required.ok()) << ToString(required.status());
  EXPECT_EQ(required->size(), 2U);

  NodeInfo elsewhere = Node(2, path_);
  elsewhere.host_id = "another";
  const std::pair<NodeInfo, const char*> cases[] = {
      {elsewhere, "server node-2 () is not on this host"},
      {Node(2, ""), "server node-2 has no unix_path"},
      {Node(2, path_ + ".absent"), "server node-2 does not answer on its unix_path"}};
  for (const auto& [node, text] : cases) {
    const auto refused = RequireLocalServers(*ViewOf({Node(1, path_), node}));
    EXPECT_EQ(refused.status().code(), StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(Message(refused.status())), ::testing::HasSubstr(text));
  }
  EXPECT_FALSE(RequireLocalServers(*ViewOf({})).ok());
}

TEST_F(BenchClusterTest, PoolsHaveToHaveRoomForMoreThanTheValues) {
  NodeInfo node = Node(1, path_);
  node.capacity_bytes = 100 * kMiB;
  EXPECT_TRUE(RequireCapacity(75 * kMiB, *ViewOf({node})).ok());
  const Status refused = RequireCapacity(76 * kMiB, *ViewOf({node}));
  EXPECT_EQ(refused.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(Message(refused)), ::testing::HasSubstr("dram.bytes"));
}

TEST(IoThreadsOfTest, ThreadsThatServeAreCountedByTheirName) {
  EXPECT_EQ(IoThreadsOf(getpid()), 0U);
  StopFlag stop;
  std::latch named(3);
  {
    std::vector<Thread> threads;
    for (const char* name : {"ems-io-0", "ems-io-1", "ems-shm"}) {
      threads.emplace_back(name, [&] {
        named.count_down();
        stop.WaitFor(std::chrono::minutes(1));
      });
    }
    named.wait();
    EXPECT_EQ(IoThreadsOf(getpid()), 2U);
    stop.Set();
  }
}

TEST(BenchNamespaceTest, NamespaceWithoutAControllerIsAnError) {
  const auto made = TemporaryNamespace::Create("127.0.0.1:1");
  ASSERT_FALSE(made.ok());
  EXPECT_NE(Message(made.status()).find("namespace for the bench"), std::string_view::npos);
}

}  // namespace
}  // namespace ems::bench
