// What must hold: each daemon answers /healthz, /readyz and /metrics, and the metrics move with the
// work.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <string>

#include "tests/support/cluster.h"
#include "tests/support/eventually.h"
#include "tests/support/raw_connection.h"

namespace ems::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(StatusPagesTest, EachDaemonIsHealthyReadyAndCounts) {
  Result<std::unique_ptr<Cluster>> started =
      Cluster::Start({.controller_flags = {}, .server_flags = {}});
  ASSERT_TRUE(started.ok()) << started.status();
  Cluster& cluster = **started;
  Result<std::unique_ptr<Client>> client = cluster.Connect();
  ASSERT_TRUE(client.ok()) << client.status();
  for (int i = 0; i < 50; ++i) {
    ASSERT_EQ((*client)->Put("key-" + std::to_string(i), std::string_view("value")), OkStatus());
  }

  std::vector<Daemon*> daemons{&cluster.controller()};
  for (int i = 0; i < cluster.server_count(); ++i) daemons.push_back(&cluster.server(i));
  for (Daemon* daemon : daemons) {
    SCOPED_TRACE(daemon->options().name);
    const std::string http = daemon->ready().http_address;
    for (const char* page : {"/healthz", "/readyz"}) {
      const Result<std::string> answer = HttpGet(http, page);
      ASSERT_TRUE(answer.ok()) << answer.status();
      EXPECT_THAT(*answer, StartsWith("200")) << page;
    }
    const Result<std::string> metrics = HttpGet(http, "/metrics");
    ASSERT_TRUE(metrics.ok()) << metrics.status();
    EXPECT_THAT(*metrics, StartsWith("200"));
    EXPECT_THAT(*metrics, HasSubstr("# HELP ems_"));
    EXPECT_THAT(*metrics, HasSubstr("# TYPE ems_"));
    EXPECT_THAT(*HttpGet(http, "/nowhere"), StartsWith("404"));
  }
}

TEST(StatusPagesTest, AServerWithoutControllerAndMajorityIsHealthyButNotReady) {
  Result<std::unique_ptr<Cluster>> started =
      Cluster::Start({.controller_flags = {"--set", "lease_ms=600", "--set", "heartbeat_ms=100"},
                      .server_flags = {}});
  ASSERT_TRUE(started.ok()) << started.status();
  Cluster& cluster = **started;
  cluster.controller().Kill();
  cluster.server(1).Kill();
  cluster.server(2).Kill();
  const std::string http = cluster.server(0).ready().http_address;
  Result<std::string> ready("");
  (void)Eventually([&] {
    ready = HttpGet(http, "/readyz");
    return !ready.ok() || !ready->starts_with("200");
  });
  EXPECT_THAT(*ready, StartsWith("503"));
  EXPECT_THAT(*HttpGet(http, "/healthz"), StartsWith("200"));
}

// Fail points are armed while a server runs, if it was started so; otherwise the page is not there.
TEST(StatusPagesTest, FailPointsAreArmedWhereTheServerAllowsIt) {
  Result<std::unique_ptr<Cluster>> started = Cluster::Start(
      {.servers = 1,
       .controller_flags = {},
       .server_flags = {"--set", "fail_points_admin=http", "--set", "ssd.capacity_bytes=64MiB"}});
  ASSERT_TRUE(started.ok()) << started.status();
  Cluster& cluster = **started;
  const std::string http = cluster.server(0).ready().http_address;
  EXPECT_THAT(*HttpPost(http, "/fail_points", "nonsense"), StartsWith("400"));
  EXPECT_THAT(*HttpPost(http, "/fail_points", "ssd.before_write=kill"), StartsWith("200"));
  Result<std::unique_ptr<Client>> client = cluster.Connect();
  ASSERT_TRUE(client.ok()) << client.status();
  (void)(*client)->Put("key", std::string_view("value"));
  const Result<int> exit = cluster.server(0).WaitExit(std::chrono::seconds(20));
  EXPECT_EQ(exit.value_or(-1), 128 + SIGKILL) << "killed at its fail point";
  EXPECT_THAT(*HttpPost(cluster.controller().ready().http_address, "/fail_points", ""),
              StartsWith("404"));
}

}  // namespace
}  // namespace ems::testing
