// What must hold: servers on this machine are found through their Unix sockets, others are left
// out; no controller is an error.
#include "bench/bench_cluster.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>

#include "fabric/socket.h"

namespace ems::bench {
namespace {

TEST(BenchClusterTest, FindsTheListenerOfAUnixSocketAndSkipsWhatIsNotThere) {
  const std::string path = "/tmp/bench-cluster-test-" + std::to_string(getpid());
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  const int listener = socket(AF_UNIX, SOCK_STREAM, 0);
  ASSERT_EQ(bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(listen(listener, 4), 0);

  const std::vector<std::string> paths = {path, "", path + ".absent", std::string(500, 'x')};
  std::vector<NodeInfo> nodes(paths.size());
  for (uint32_t i = 0; i < nodes.size(); ++i) {
    nodes[i].id = NodeId(i + 1);
    nodes[i].name = "node-" + std::to_string(i);
    nodes[i].unix_path = paths[i];
    nodes[i].host_id = fabric::HostId();
  }
  NodeInfo elsewhere = nodes[0];  // the same path on another machine
  elsewhere.id = NodeId(9);
  elsewhere.host_id = "another";
  nodes.push_back(elsewhere);
  const auto view = DhtView::Make(ViewVersion(1, 1), nodes, SlotTable(), false);
  ASSERT_TRUE(view.ok()) << ToString(view.status());
  EXPECT_EQ(LocalServerPids(**view), std::vector<pid_t>{getpid()});
  close(listener);
  unlink(path.c_str());
}

TEST(BenchClusterTest, NamespaceWithoutAControllerIsAnError) {
  const auto made = TemporaryNamespace::Create("127.0.0.1:1");
  ASSERT_FALSE(made.ok());
  EXPECT_NE(Message(made.status()).find("namespace for the bench"), std::string_view::npos);
}

}  // namespace
}  // namespace ems::bench
