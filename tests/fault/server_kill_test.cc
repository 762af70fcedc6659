// What must hold when servers die without a word: no wrong byte, no call above its deadline, and
// new owners serve within lease + settling (7 s by default).
#include <gtest/gtest.h>

#include <string>

#include "tests/support/cluster.h"
#include "tests/support/self_verifying.h"
#include "tests/support/verified_load.h"

namespace ems::testing {
namespace {

constexpr Duration kCallTimeout = std::chrono::seconds(1);
constexpr Duration kSlack = std::chrono::milliseconds(500);  // scheduling on a busy machine
constexpr Duration kTakeOverMax = std::chrono::seconds(7);
constexpr double kHitShareMin = 0.2;  // a third of the values die with their server

std::unique_ptr<Cluster> StartCluster() {
  // The heartbeats that users have: it is their take-over that is measured here.
  Result<std::unique_ptr<Cluster>> cluster =
      Cluster::Start({.controller_flags = {"--set", "heartbeat_ms=1000"}, .server_flags = {}});
  EXPECT_TRUE(cluster.ok()) << cluster.status();
  return cluster.ok() ? std::move(*cluster) : nullptr;
}

TEST(ServerKillTest, KillNineUnderLoadGivesNoWrongByteNoLateCallAndNewOwnersInTime) {
  const std::unique_ptr<Cluster> cluster = StartCluster();
  ASSERT_NE(cluster, nullptr);
  Result<std::unique_ptr<Client>> client = cluster->Connect();
  ASSERT_TRUE(client.ok()) << client.status();
  // Large values, so that the kill falls into Puts and Gets that are on their way.
  VerifiedLoad load(
      client->get(),
      {.threads = 4, .keys = 200, .value_bytes_max = 2 * kMiB, .timeout = kCallTimeout});
  ASSERT_TRUE(load.WaitForCalls(300, std::chrono::seconds(30)));
  EXPECT_TRUE(load.Take().errors.empty());

  const TimePoint killed = Clock::System().Now();
  cluster->server(1).Kill();
  ASSERT_EQ(cluster->WaitForServers(2, kTakeOverMax), OkStatus());
  // The first second without an error after the take-over.
  LoadCounts counts;
  do {
    counts = load.Take();
    EXPECT_TRUE(counts.right()) << counts.ToText();
    EXPECT_LE(counts.slowest, kCallTimeout + kSlack) << counts.ToText();
    ASSERT_LT(Clock::System().Now() - killed, kTakeOverMax) << counts.ToText();
    ASSERT_TRUE(load.WaitForCalls(100, kTakeOverMax));
    counts = load.Take();
    EXPECT_TRUE(counts.right()) << counts.ToText();
  } while (!counts.errors.empty());
  RecordProperty("take_over_ms",
                 static_cast<int>((Clock::System().Now() - killed) / std::chrono::milliseconds(1)));

  ASSERT_TRUE(load.WaitForCalls(300, std::chrono::seconds(30)));
  load.Stop();
  counts = load.Take();
  EXPECT_TRUE(counts.right()) << counts.ToText();
  EXPECT_TRUE(counts.errors.empty()) << counts.ToText();
  EXPECT_LE(counts.slowest, kCallTimeout + kSlack);
  EXPECT_GT(counts.hit_share(), kHitShareMin) << counts.ToText();
}

TEST(ServerKillTest, TheSameServerComesBackEmptyAndServesAgain) {
  const std::unique_ptr<Cluster> cluster = StartCluster();
  ASSERT_NE(cluster, nullptr);
  Result<std::unique_ptr<Client>> client = cluster->Connect();
  ASSERT_TRUE(client.ok()) << client.status();
  VerifiedLoad load(client->get(), {.timeout = kCallTimeout});
  ASSERT_TRUE(load.WaitForCalls(300, std::chrono::seconds(30)));
  ASSERT_EQ(cluster->RestartServer(0), OkStatus());
  ASSERT_EQ(cluster->WaitForServers(3, std::chrono::seconds(15)), OkStatus());
  ASSERT_TRUE(load.WaitForCalls(300, std::chrono::seconds(30)));
  LoadCounts counts = load.Take();
  EXPECT_TRUE(counts.right()) << counts.ToText();
  ASSERT_TRUE(load.WaitForCalls(300, std::chrono::seconds(30)));
  load.Stop();
  counts = load.Take();
  EXPECT_TRUE(counts.right()) << counts.ToText();
  EXPECT_TRUE(counts.errors.empty()) << counts.ToText();
  EXPECT_LE(counts.slowest, kCallTimeout + kSlack);
  EXPECT_GT(counts.hit_share(), kHitShareMin) << counts.ToText();
}

TEST(ServerKillTest, AllServersAtOnceThenMissesAndServiceAgain) {
  const std::unique_ptr<Cluster> cluster = StartCluster();
  ASSERT_NE(cluster, nullptr);
  Result<std::unique_ptr<Client>> client = cluster->Connect();
  ASSERT_TRUE(client.ok()) << client.status();
  ASSERT_EQ((*client)->Put("before", std::string_view("value")), OkStatus());
  VerifiedLoad load(client->get(), {.timeout = kCallTimeout});
  ASSERT_TRUE(load.WaitForCalls(300, std::chrono::seconds(30)));

  for (int i = 0; i < 3; ++i) cluster->server(i).Kill();
  for (int i = 0; i < 3; ++i) ASSERT_EQ(cluster->RespawnServer(i), OkStatus());
  for (int i = 0; i < 3; ++i)
    ASSERT_EQ(cluster->server(i).WaitReady(std::chrono::seconds(15)), OkStatus());
  ASSERT_EQ(cluster->WaitForServers(3, std::chrono::seconds(15)), OkStatus());

  const Deadline deadline = Deadline::After(std::chrono::seconds(15));
  LoadCounts counts;
  do {
    ASSERT_TRUE(load.WaitForCalls(100, std::chrono::seconds(15)));
    counts = load.Take();
    EXPECT_TRUE(counts.right()) << counts.ToText();
    EXPECT_LE(counts.slowest, kCallTimeout + kSlack) << counts.ToText();
  } while (!counts.errors.empty() && !deadline.Passed());
  EXPECT_TRUE(counts.errors.empty()) << counts.ToText();
  ASSERT_TRUE(load.WaitForCalls(600, std::chrono::seconds(15)));
  load.Stop();
  counts = load.Take();
  EXPECT_TRUE(counts.right()) << counts.ToText();
  EXPECT_GT(counts.hit_share(), kHitShareMin) << counts.ToText();
  EXPECT_EQ((*client)->Get("before").status().code(), StatusCode::kNotFound);
}

TEST(ServerKillTest, ADeadPoolIsErrorsQuickly) {
  const std::unique_ptr<Cluster> cluster = StartCluster();
  ASSERT_NE(cluster, nullptr);
  Result<std::unique_ptr<Client>> client = cluster->Connect();
  ASSERT_TRUE(client.ok()) << client.status();
  ASSERT_EQ((*client)->Put("key", std::string_view("value")), OkStatus());
  for (int i = 0; i < 3; ++i) cluster->server(i).Kill();
  for (int i = 0; i < 20; ++i) {
    const TimePoint start = Clock::System().Now();
    const Status status = (*client)->Get("key", {.timeout = kCallTimeout}).status();
    EXPECT_FALSE(status.ok());
    EXPECT_NE(status.code(), StatusCode::kDataLoss);
    EXPECT_LE(Clock::System().Now() - start, kCallTimeout + kSlack) << status;
  }
}

}  // namespace
}  // namespace ems::testing
