// What must hold when a server reaches a controller that is not its own, or comes with views that
// its controller has not made: it is refused by name, drops nothing, and the cluster goes on as if
// it had not come; or it is one of the cluster, and nobody goes on before an operator has decided.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <string>
#include <vector>

#include "cluster/controller_client.h"
#include "mp_server/lease/data_dir.h"
#include "tests/support/cluster.h"
#include "tests/support/eventually.h"
#include "tests/support/raw_connection.h"
#include "tests/support/self_verifying.h"

namespace ems::testing {
namespace {

using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kObjects = 50;

std::string Key(int i) { return "key-" + std::to_string(i); }

// View and cluster as the controller has them now.
std::unique_ptr<ViewCache> Ask(const Cluster& cluster) {
  auto cache = std::make_unique<ViewCache>();
  ControllerClient controller(cluster.controller_address(), "test");
  EXPECT_EQ(controller.Refresh(cache.get(), Deadline::After(seconds(5))), OkStatus());
  return cache;
}

std::string Page(Daemon& daemon, const std::string& page) {
  return HttpGet(daemon.ready().http_address, page).value_or("");
}

ProgramOutput Emsctl(const Cluster& cluster, std::vector<std::string> words) {
  words.insert(words.begin(), {"--controller", cluster.controller_address()});
  return RunProgram("emsctl", words).value_or(ProgramOutput{.exit_code = -1, .out = {}});
}

// Whether the server that stops keeps its slots (SSD) or leaves does not matter: it is gone.
void StopInOrder(Daemon* daemon) {
  daemon->Signal(SIGTERM);
  ASSERT_TRUE(daemon->WaitExit(seconds(15)).ok());
}

TEST(ClusterIdentityTest, AServerOfAnotherClusterIsRefusedByNameAndLosesNothing) {
  auto own = Cluster::Start(
      {.servers = 1,
       .controller_flags = {"--set", "damping_ms=0"},
       .server_flags = {"--set", "ssd.capacity_bytes=512MiB", "--set", "dram.bytes=64MiB"}});
  ASSERT_TRUE(own.ok()) << own.status();
  Cluster& home = **own;
  {
    auto client = home.Connect(TransportChoice::kTcp, seconds(10));
    ASSERT_TRUE(client.ok()) << client.status();
    for (int i = 0; i < kObjects; ++i) {
      ASSERT_EQ((*client)->Put(Key(i), std::string_view(MakeValue("default", Key(i), 1, 20'000)),
                               {.durability = Durability::kSsd}),
                OkStatus());
    }
  }
  auto started = Cluster::Start({.servers = 2, .controller_flags = {}, .server_flags = {}});
  ASSERT_TRUE(started.ok()) << started.status();
  Cluster& other = **started;
  const auto before = Ask(other);
  const std::string home_id = ClusterText(Ask(home)->cluster());
  const std::string other_id = ClusterText(before->cluster());
  ASSERT_NE(home_id, other_id);

  // It has the name of a member there, too.
  const std::string http = home.server(0).ready().http_address;
  StopInOrder(&home.server(0));
  ASSERT_EQ(home.RespawnServer(0, {"--set", "controller=" + other.controller_address(), "--set",
                                   "http_listen=" + http}),
            OkStatus());
  std::string ready;
  EXPECT_TRUE(Eventually(
      [&] {
        ready = HttpGet(http, "/readyz").value_or("");
        return ready.find("another data_dir") != std::string::npos;
      },
      seconds(30)))
      << ready;
  EXPECT_THAT(ready, AllOf(HasSubstr("503"), HasSubstr("belongs to cluster " + home_id),
                           HasSubstr("the controller of cluster " + other_id)));
  EXPECT_THAT(Page(other.controller(), "/metrics"),
              HasSubstr("ems_controller_nodes{state=\"live\"} 2\n"));
  EXPECT_THAT(Page(other.controller(), "/metrics"),
              ::testing::Not(HasSubstr("ems_controller_strangers_refused_total 0\n")));
  const auto after = Ask(other);
  EXPECT_EQ(after->view()->version(), before->view()->version());
  EXPECT_EQ(after->view()->slots(), before->view()->slots());
  EXPECT_EQ(after->view()->history(), before->view()->history());
  EXPECT_EQ(Emsctl(other, {"status", "--check"}).exit_code, 0);

  ASSERT_EQ(home.RestartServer(0), OkStatus());
  ASSERT_EQ(home.WaitForServers(1, seconds(20)), OkStatus());
  auto client = home.Connect(TransportChoice::kTcp, seconds(10));
  ASSERT_TRUE(client.ok()) << client.status();
  for (int i = 0; i < kObjects; ++i) {
    const Result<std::string> value = (*client)->Get(Key(i));
    ASSERT_TRUE(value.ok()) << Key(i) << ": " << value.status();
    EXPECT_EQ(VerifyValue("default", Key(i), *value), 1U);
  }
}

TEST(ClusterIdentityTest, AMachineWithAHigherViewInItsFolderStopsAllLeasesUntilAnOperatorDecides) {
  auto started = Cluster::Start(
      {.servers = 2, .controller_flags = {"--set", "damping_ms=0"}, .server_flags = {}});
  ASSERT_TRUE(started.ok()) << started.status();
  Cluster& cluster = **started;
  StopInOrder(&cluster.server(1));
  ASSERT_EQ(cluster.WaitForServers(1, seconds(10)), OkStatus());
  EXPECT_EQ(Emsctl(cluster, {"status"}).exit_code, 0) << "who left in order is no fault";
  EXPECT_THAT(Emsctl(cluster, {"node", "list"}).out, HasSubstr("left "));
  const auto before = Ask(cluster);
  {
    auto folder = server::DataDir::Open(cluster.folder() + "/" + Cluster::ServerName(1));
    ASSERT_TRUE(folder.ok()) << folder.status();
    EXPECT_EQ(folder->cluster(), before->cluster());
    ASSERT_EQ(folder->SetHighestView({{40, 100'000}}), OkStatus());
  }
  ASSERT_EQ(cluster.RespawnServer(1), OkStatus());
  ProgramOutput status;
  EXPECT_TRUE(Eventually(
      [&] {
        status = Emsctl(cluster, {"status"});
        return status.out.find("is parked") != std::string::npos;
      },
      seconds(20)));
  EXPECT_THAT(status.out, AllOf(HasSubstr("DEGRADED"), HasSubstr(Cluster::ServerName(1)),
                                HasSubstr("emsctl view accept-ahead"),
                                HasSubstr(ClusterText(before->cluster()))));
  EXPECT_EQ(status.exit_code, 1) << status.out;
  const auto after = Ask(cluster);
  EXPECT_EQ(after->view()->version(), before->view()->version());
  EXPECT_EQ(after->view()->nodes().size(), 1U);
  // Gauges are set by the controller's next tick.
  EXPECT_TRUE(Eventually(
      [&] {
        return Page(cluster.controller(), "/metrics")
                   .find("ems_controller_nodes{state=\"ahead\"} 1\n") != std::string::npos;
      },
      seconds(5)));
  EXPECT_TRUE(Eventually(
      [&] {
        return Page(cluster.controller(), "/metrics").find("ems_controller_store_is_old 1\n") !=
               std::string::npos;
      },
      seconds(5)));

  // It is of this cluster, so the controller's folder may be an older copy: nobody gets a lease.
  EXPECT_THAT(status.out, HasSubstr("older copy"));
  EXPECT_TRUE(Eventually(
      [&] { return Page(cluster.server(0), "/readyz").find("no lease") != std::string::npos; },
      seconds(20)));
  EXPECT_TRUE(Eventually(
      [&] {
        return Emsctl(cluster, {"view", "accept-ahead"}).exit_code == 0;
      },
      seconds(20)))
      << "leases end";
  ASSERT_EQ(cluster.WaitForServers(2, seconds(20)), OkStatus());
  EXPECT_GT(Ask(cluster)->view()->version(), ViewVersion(40, 100'000));
}

}  // namespace
}  // namespace ems::testing
