// What must hold when the controller dies: the data path goes on with the last view, and after a
// restart nothing that was acknowledged is lost and no view is older.
#include <gtest/gtest.h>

#include "cluster/controller_client.h"
#include "tests/support/cluster.h"
#include "tests/support/verified_load.h"

namespace ems::testing {
namespace {

constexpr Duration kCallTimeout = std::chrono::seconds(1);
constexpr Duration kSlack = std::chrono::milliseconds(500);

Deadline Soon() { return Deadline::After(std::chrono::seconds(5)); }

TEST(ControllerKillTest, KillNineUnderLoadAndTheDataPathGoesOn) {
  Result<std::unique_ptr<Cluster>> started =
      Cluster::Start({.controller_flags = {}, .server_flags = {}});
  ASSERT_TRUE(started.ok()) << started.status();
  Cluster& cluster = **started;
  Result<std::unique_ptr<Client>> client = cluster.Connect();
  ASSERT_TRUE(client.ok()) << client.status();
  ControllerClient control(cluster.controller_address(), "test");
  NamespaceInfo wanted;
  wanted.name = "kept";
  wanted.dram_quota_bytes = 10 * kMiB;
  const Result<NamespaceInfo> made = control.CreateNamespace(wanted, Soon());
  ASSERT_TRUE(made.ok()) << made.status();
  const ViewVersion before = (*client)->views().view()->version();
  VerifiedLoad load(client->get(), {.timeout = kCallTimeout});
  ASSERT_TRUE(load.WaitForCalls(300, std::chrono::seconds(30)));

  cluster.controller().Kill();
  ASSERT_TRUE(load.WaitForCalls(500, std::chrono::seconds(30)));
  ASSERT_EQ(cluster.RestartController(), OkStatus());
  ASSERT_EQ(cluster.WaitForServers(3, std::chrono::seconds(10)), OkStatus());
  ASSERT_TRUE(load.WaitForCalls(500, std::chrono::seconds(30)));
  load.Stop();
  const LoadCounts counts = load.Take();
  EXPECT_TRUE(counts.right()) << counts.ToText();
  EXPECT_TRUE(counts.errors.empty()) << counts.ToText();
  EXPECT_LE(counts.slowest, kCallTimeout + kSlack);
  EXPECT_GT(counts.hit_share(), 0.2) << counts.ToText();

  const Result<NamespaceInfo> kept = control.GetNamespace("kept", Soon());
  ASSERT_TRUE(kept.ok()) << kept.status();
  EXPECT_EQ(kept->ref, made->ref);
  EXPECT_EQ(kept->dram_quota_bytes, 10 * kMiB);
  const ViewCache::View after =
      (*client)->views().WaitForView(ViewVersion(before.term() + 1, 0), Soon());
  ASSERT_NE(after, nullptr) << "the client never saw a view of the new term";
  EXPECT_GT(after->version(), before);
}

TEST(ControllerKillTest, NoControllerAtAllIsAClearErrorWithinItsTime) {
  ClientOptions options;
  options.controller = "127.0.0.1:1";
  options.start_timeout = std::chrono::seconds(1);
  const TimePoint start = Clock::System().Now();
  const Result<std::unique_ptr<Client>> client = Client::Connect(options);
  EXPECT_EQ(client.status().code(), StatusCode::kUnavailable) << client.status();
  EXPECT_LE(Clock::System().Now() - start, std::chrono::seconds(1) + kSlack);
}

}  // namespace
}  // namespace ems::testing
