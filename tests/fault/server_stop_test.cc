// What must hold when a server is asked to stop, or sleeps and wakes up: it leaves in order and in
// time, and never answers for slots that others own by then.
#include <gtest/gtest.h>
#include <signal.h>

#include <fstream>

#include "common/thread_pool.h"
#include "tests/support/cluster.h"
#include "tests/support/paths.h"
#include "tests/support/verified_load.h"

namespace ems::testing {
namespace {

constexpr Duration kCallTimeout = std::chrono::seconds(1);
constexpr Duration kSlack = std::chrono::milliseconds(500);

TEST(ServerStopTest, SigtermUnderLoadExitsCleanlyWithinTenSeconds) {
  Result<std::unique_ptr<Cluster>> cluster =
      Cluster::Start({.controller_flags = {}, .server_flags = {}});
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  Result<std::unique_ptr<Client>> client = (*cluster)->Connect();
  ASSERT_TRUE(client.ok()) << client.status();
  VerifiedLoad load(client->get(), {.value_bytes_max = kMiB, .timeout = kCallTimeout});
  ASSERT_TRUE(load.WaitForCalls(200, std::chrono::seconds(30)));

  (*cluster)->server(2).Signal(SIGTERM);
  const Result<int> code = (*cluster)->server(2).WaitExit(std::chrono::seconds(10));
  ASSERT_TRUE(code.ok()) << code.status();
  EXPECT_EQ(*code, 0);
  // It released its slots itself: no server waits for a lease to end.
  EXPECT_EQ((*cluster)->WaitForServers(2, std::chrono::seconds(3)), OkStatus());
  ASSERT_TRUE(load.WaitForCalls(100, std::chrono::seconds(10)));
  // A call that met the slots while they changed hands may last until its deadline; later ones
  // none.
  StopFlag never;
  never.WaitFor(kCallTimeout);
  LoadCounts counts = load.Take();
  EXPECT_TRUE(counts.right()) << counts.ToText();
  EXPECT_LE(counts.slowest, kCallTimeout + kSlack) << counts.ToText();
  ASSERT_TRUE(load.WaitForCalls(200, std::chrono::seconds(10)));
  load.Stop();
  counts = load.Take();
  EXPECT_TRUE(counts.right()) << counts.ToText();
  EXPECT_TRUE(counts.errors.empty()) << counts.ToText();
  EXPECT_GT(counts.hit_share(), 0.2) << counts.ToText();
}

// Nothing may be preloaded before AddressSanitizer's own library.
#if !defined(__SANITIZE_ADDRESS__)

// A thread of its SSD tier waits for the disk, which may still read memory of the process.
TEST(ServerStopTest, OneWhoseDiskAnswersNoMoreEndsInTimeAllTheSame) {
  Result<std::unique_ptr<Cluster>> started = Cluster::Start(
      {.servers = 1,
       .controller_flags = {},
       .server_flags = {"--set", "ssd.capacity_bytes=512MiB", "--set", "dram.bytes=64MiB"},
       .server_environment = {"LD_PRELOAD=" + BinDir() + "/../tests/bin/libhang_sync.so"}});
  ASSERT_TRUE(started.ok()) << started.status();
  Cluster& cluster = **started;
  Result<std::unique_ptr<Client>> client = cluster.Connect();
  ASSERT_TRUE(client.ok()) << client.status();
  const PutOptions durable{.durability = Durability::kSsd};
  ASSERT_EQ((*client)->Put("before", std::string_view("value"), durable), OkStatus());
  std::ofstream{cluster.folder() + "/" + Cluster::ServerName(0) + "/ssd/regions/hang"};
  EXPECT_FALSE((*client)->Put("stuck", std::string_view("value"), durable).ok());

  cluster.server(0).Signal(SIGTERM);
  const Result<int> code = cluster.server(0).WaitExit(std::chrono::seconds(15));
  ASSERT_TRUE(code.ok()) << code.status();
  EXPECT_EQ(*code, 1);
  EXPECT_NE(cluster.server(0).ReadLog().find("stopping took more than 10 s"), std::string::npos);
}

#endif

TEST(ServerStopTest, ControllerStopsOnSigtermToo) {
  Result<std::unique_ptr<Cluster>> cluster =
      Cluster::Start({.servers = 1, .controller_flags = {}, .server_flags = {}});
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  (*cluster)->controller().Signal(SIGTERM);
  const Result<int> code = (*cluster)->controller().WaitExit(std::chrono::seconds(10));
  ASSERT_TRUE(code.ok()) << code.status();
  EXPECT_EQ(*code, 0);
}

TEST(ServerStopTest, AServerThatSleptBeyondItsLeaseServesNothingOldWhenItWakes) {
  Result<std::unique_ptr<Cluster>> started =
      Cluster::Start({.controller_flags = {"--set", "lease_ms=1000", "--set", "heartbeat_ms=100",
                                           "--set", "damping_ms=0"},
                      .server_flags = {}});
  ASSERT_TRUE(started.ok()) << started.status();
  Cluster& cluster = **started;
  Result<std::unique_ptr<Client>> client = cluster.Connect();
  ASSERT_TRUE(client.ok()) << client.status();
  std::vector<std::string> keys;
  keys.reserve(60);
  for (int i = 0; i < 60; ++i) keys.push_back("key-" + std::to_string(i));
  for (const std::string& key : keys)
    ASSERT_EQ((*client)->Put(key, std::string_view("old")), OkStatus());

  cluster.server(0).Signal(SIGSTOP);
  ASSERT_EQ(cluster.WaitForServers(2, std::chrono::seconds(10)), OkStatus());
  for (const std::string& key : keys) {
    Status status;
    const Deadline deadline = Deadline::After(std::chrono::seconds(5));
    do {
      status = (*client)->Put(key, std::string_view("new"), {.overwrite = true});
    } while (!status.ok() && !deadline.Passed());
    ASSERT_EQ(status, OkStatus());
  }
  cluster.server(0).Signal(SIGCONT);
  ASSERT_EQ(cluster.WaitForServers(3, std::chrono::seconds(15)), OkStatus());
  for (const std::string& key : keys) {
    const Result<std::string> value = (*client)->Get(key);
    if (value.ok()) {
      EXPECT_EQ(*value, "new") << key;
    }
  }
}

}  // namespace
}  // namespace ems::testing
