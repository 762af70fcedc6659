// What must hold with few file descriptors: new connections are refused, those that are there go
// on, and service is back when descriptors are.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/cluster.h"
#include "tests/support/raw_connection.h"
#include "tests/support/verified_load.h"

namespace ems::testing {
namespace {

TEST(FdLimitTest, AServerWith256DescriptorsSurvives400Connections) {
  Result<std::unique_ptr<Cluster>> started = Cluster::Start(
      {.servers = 1, .controller_flags = {"--set", "damping_ms=0"}, .server_flags = {}});
  ASSERT_TRUE(started.ok()) << started.status();
  Cluster& cluster = **started;
  Daemon::Options options = cluster.server(0).options();
  options.fd_limit = 256;
  cluster.server(0).Kill();
  Result<Daemon> limited = Daemon::Start(options);
  ASSERT_TRUE(limited.ok()) << limited.status();
  cluster.server(0) = std::move(*limited);
  ASSERT_EQ(cluster.server(0).WaitReady(std::chrono::seconds(15)), OkStatus());
  ASSERT_EQ(cluster.WaitForServers(1, std::chrono::seconds(15)), OkStatus());
  Result<std::unique_ptr<Client>> client = cluster.Connect(TransportChoice::kTcp);
  ASSERT_TRUE(client.ok()) << client.status();
  VerifiedLoad load(client->get(), {.threads = 2, .keys = 50, .value_bytes_max = 64 * kKiB});
  ASSERT_TRUE(load.WaitForCalls(200, std::chrono::seconds(30)));
  LoadCounts counts = load.Take();

  {
    std::vector<RawConnection> crowd;
    for (int i = 0; i < 400; ++i) {
      Result<RawConnection> connection = RawConnection::Open(cluster.server(0).ready().address);
      if (connection.ok()) crowd.push_back(std::move(*connection));
    }
    ASSERT_TRUE(load.WaitForCalls(200, std::chrono::seconds(10)));
    counts = load.Take();
    EXPECT_TRUE(counts.right()) << counts.ToText();
    EXPECT_TRUE(counts.errors.empty())
        << "connections that were there suffered: " << counts.ToText();
    EXPECT_GT(counts.hit_share(), 0.5) << counts.ToText();
  }
  const Deadline deadline = Deadline::After(std::chrono::seconds(10));
  Status status;
  do {  // a new client, so new connections
    Result<std::unique_ptr<Client>> late = cluster.Connect(TransportChoice::kTcp);
    status = late.ok() ? (*late)->Put("late", std::string_view("value")) : late.status();
  } while (!status.ok() && !deadline.Passed());
  EXPECT_EQ(status, OkStatus());
  EXPECT_TRUE(cluster.server(0).running());
}

}  // namespace
}  // namespace ems::testing
