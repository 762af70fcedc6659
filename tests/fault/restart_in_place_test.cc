// What must hold when a server stops in order and comes back with a store for its memory: all that
// it had in DRAM is there, byte for byte, over sockets and one-sided, and nothing older than what
// anybody has put, removed or deleted meanwhile. After a crash nothing comes back.
#include <gtest/gtest.h>
#include <signal.h>

#include <map>
#include <optional>
#include <string>

#include "cluster/controller_client.h"
#include "tests/support/cluster.h"
#include "tests/support/eventually.h"
#include "tests/support/self_verifying.h"

namespace ems::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class RestartInPlaceTest : public ::testing::Test {
 protected:
  void Begin(int servers, const std::string& lease_ms, std::vector<std::string> flags = {}) {
    auto started = Cluster::Start(
        {.servers = servers,
         .controller_flags = {"--set", "damping_ms=0", "--set", "lease_ms=" + lease_ms},
         .server_flags = std::move(flags)});
    ASSERT_TRUE(started.ok()) << started.status();
    cluster_ = *std::move(started);
    auto holder = Daemon::Start({.program = "mp-server",
                                 .folder = cluster_->folder(),
                                 .name = "holder",
                                 .flags = {"--hold", Socket()},
                                 .fd_limit = {},
                                 .environment = {}});
    ASSERT_TRUE(holder.ok()) << holder.status();
    holder_.emplace(*std::move(holder));
    ASSERT_EQ(holder_->WaitReady(seconds(10)), OkStatus());
    // From this start on it has a store.
    Stop();
    Start();
  }
  std::string Socket() const { return cluster_->folder() + "/holder.sock"; }
  std::vector<std::string> Flags() const { return {"--set", "restart.holder=" + Socket()}; }
  void Stop() {
    cluster_->server(0).Signal(SIGTERM);
    const auto code = cluster_->server(0).WaitExit(seconds(15));
    ASSERT_TRUE(code.ok()) << code.status();
    ASSERT_EQ(*code, 0);
  }
  void Start() {
    log_from_ = cluster_->server(0).ReadLog().size();
    ASSERT_EQ(cluster_->RestartServer(0, Flags()), OkStatus());
    ASSERT_EQ(cluster_->WaitForServers(cluster_->server_count(), seconds(20)), OkStatus());
  }
  // Of this process.
  std::string Log() { return cluster_->server(0).ReadLog().substr(log_from_); }
  bool TookOver() { return Log().find("took over ") != std::string::npos; }

  std::unique_ptr<Client> Connect(TransportChoice transport = TransportChoice::kAuto,
                                  const std::string& ns = "default") {
    ClientOptions options;
    options.controller = cluster_->controller_address();
    options.name_space = ns;
    options.transport = transport;
    options.op_timeout = seconds(10);
    auto client = Client::Connect(options);
    EXPECT_TRUE(client.ok()) << client.status();
    return client.ok() ? *std::move(client) : nullptr;
  }
  static Status Put(Client& client, const std::string& key, uint64_t put_id, size_t bytes) {
    const std::string value = MakeValue("kv", key, put_id, bytes);
    PutOptions options;
    options.overwrite = true;
    Status status;
    for (int i = 0; i < 5; ++i) {  // a server that comes back may ask to wait
      status = client.Put(key, AsBytes(value), options);
      if (status.ok()) break;
    }
    return status;
  }
  // The put id; 0: a miss.
  static uint64_t Get(Client& client, const std::string& key) {
    const Result<std::string> value = client.Get(key);
    if (value.status().code() == StatusCode::kNotFound) return 0;
    EXPECT_TRUE(value.ok()) << key << ": " << value.status();
    if (!value.ok()) return 0;
    const auto put_id = VerifyValue("kv", key, *value);
    EXPECT_TRUE(put_id.has_value()) << key << ": wrong bytes";
    return put_id.value_or(0);
  }
  static std::string Key(int i) { return "key-" + std::to_string(i); }
  static size_t Bytes(int i) {
    constexpr size_t kBytes[] = {100, 4000, 30'000, 100'000, 400'000};
    return kBytes[i % 5];
  }
  void Fill(Client& client, int keys, uint64_t put_id = 1) {
    for (int i = 0; i < keys; ++i)
      ASSERT_EQ(Put(client, Key(i), put_id, Bytes(i)), OkStatus()) << i;
  }

  std::unique_ptr<Cluster> cluster_;
  std::optional<Daemon> holder_;
  size_t log_from_ = 0;
};

TEST_F(RestartInPlaceTest, EveryObjectIsHitAgainOverSocketsAndOneSided) {
  Begin(3, "5000");
  constexpr int kKeys = 300;
  {
    auto client = Connect();
    ASSERT_NE(client, nullptr);
    ASSERT_NO_FATAL_FAILURE(Fill(*client, kKeys));
  }
  for (int round = 0; round < 3; ++round) {
    Stop();
    EXPECT_NE(Log().find("handed over "), std::string::npos) << Log();
    Start();
    EXPECT_TRUE(TookOver()) << Log();
    for (const TransportChoice transport : {TransportChoice::kTcp, TransportChoice::kAuto}) {
      auto client = Connect(transport);
      ASSERT_NE(client, nullptr);
      int hits = 0;
      for (int i = 0; i < kKeys; ++i) hits += Get(*client, Key(i)) == 1 ? 1 : 0;
      EXPECT_EQ(hits, kKeys) << "round " << round;
      if (transport == TransportChoice::kTcp) continue;
      // The same once its sessions have tables.
      EXPECT_TRUE(Eventually([&] {
        const uint64_t before = client->stats().one_sided;
        for (int i = 0; i < kKeys; ++i) EXPECT_EQ(Get(*client, Key(i)), 1u) << i;
        return client->stats().one_sided - before == kKeys;
      }));
    }
  }
}

TEST_F(RestartInPlaceTest, AClientThatStaysGoesOn) {
  Begin(2, "5000");
  auto client = Connect();
  ASSERT_NE(client, nullptr);
  ASSERT_NO_FATAL_FAILURE(Fill(*client, 60));
  for (int i = 0; i < 60; ++i) EXPECT_EQ(Get(*client, Key(i)), 1u);
  Stop();
  Start();
  for (int i = 0; i < 60; ++i) EXPECT_EQ(Get(*client, Key(i)), 1u) << i;
  ASSERT_NO_FATAL_FAILURE(Fill(*client, 60, 2));
  for (int i = 0; i < 60; ++i) EXPECT_EQ(Get(*client, Key(i)), 2u) << i;
}

TEST_F(RestartInPlaceTest, AViewKeepsItsBytesWhateverTheNextProcessWrites) {
  Begin(1, "5000", {"--set", "dram.bytes=64MiB", "--set", "dram.huge_pages=off"});
  auto client = Connect();
  ASSERT_NE(client, nullptr);
  ASSERT_EQ(Put(*client, "held", 1, 100'000), OkStatus());
  std::optional<ObjectView> view;
  ASSERT_TRUE(Eventually([&] {
    auto got = client->GetView("held");
    if (!got.ok()) return false;
    view.emplace(*std::move(got));
    return client->stats().one_sided > 0;
  }));
  Stop();
  EXPECT_NE(Log().find("left_with_clients=1"), std::string::npos) << Log();
  Start();
  auto other = Connect();
  ASSERT_NE(other, nullptr);
  for (int i = 0; i < 600; ++i) {  // several times the pool
    const Status put = Put(*other, "n" + std::to_string(i), 2, 400'000);
    ASSERT_TRUE(put.ok() || put.code() == StatusCode::kResourceExhausted) << put;
  }
  EXPECT_EQ(VerifyValue("kv", "held", AsText(view->bytes())), 1u);
}

TEST_F(RestartInPlaceTest, AfterKillNineItBeginsCold) {
  Begin(1, "5000");
  auto client = Connect();
  ASSERT_NE(client, nullptr);
  ASSERT_NO_FATAL_FAILURE(Fill(*client, 40));
  cluster_->server(0).Kill();
  Start();
  EXPECT_FALSE(TookOver()) << Log();
  for (int i = 0; i < 40; ++i) EXPECT_EQ(Get(*client, Key(i)), 0u) << i;
}

TEST_F(RestartInPlaceTest, AProcessThatDiesAfterItTookOverLeavesNothing) {
  Begin(1, "5000");
  auto client = Connect();
  ASSERT_NE(client, nullptr);
  ASSERT_NO_FATAL_FAILURE(Fill(*client, 40));
  Stop();
  Start();
  ASSERT_TRUE(TookOver()) << Log();
  cluster_->server(0).Kill();
  Start();
  EXPECT_FALSE(TookOver()) << Log();
  for (int i = 0; i < 40; ++i) EXPECT_EQ(Get(*client, Key(i)), 0u) << i;
}

// Others own its slots meanwhile, replace some values and remove others.
TEST_F(RestartInPlaceTest, WhatOthersDidMeanwhileIsNeverUndone) {
  Begin(3, "1000");
  constexpr int kKeys = 150;
  auto client = Connect();
  ASSERT_NE(client, nullptr);
  ASSERT_NO_FATAL_FAILURE(Fill(*client, kKeys));
  Stop();
  ASSERT_EQ(cluster_->WaitForServers(2, seconds(20)), OkStatus());
  client = Connect();
  ASSERT_NE(client, nullptr);
  for (int i = 0; i < kKeys; ++i) {
    if (i % 3 == 0) {
      ASSERT_EQ(Put(*client, Key(i), 2, Bytes(i)), OkStatus()) << i;
    }
    if (i % 3 != 1) continue;
    const Status removed = client->Remove(Key(i));
    ASSERT_TRUE(removed.ok() || removed.code() == StatusCode::kNotFound) << removed;
  }
  Start();
  client = Connect();
  ASSERT_NE(client, nullptr);
  for (int i = 0; i < kKeys; ++i) {
    const uint64_t got = Get(*client, Key(i));
    EXPECT_LE(got, i % 3 == 1 ? 0 : 2) << i;
    EXPECT_TRUE(i % 3 != 0 || got != 1) << i << ": an older value";
  }
}

TEST_F(RestartInPlaceTest, ANamespaceThatWasDeletedMeanwhileStaysSo) {
  Begin(1, "8000");
  ControllerClient controller(cluster_->controller_address(), "test");
  NamespaceInfo info;
  info.name = "gone";
  ASSERT_TRUE(controller.CreateNamespace(info, Deadline::After(seconds(5))).ok());
  {
    auto client = Connect(TransportChoice::kAuto, "gone");
    ASSERT_NE(client, nullptr);
    ASSERT_NO_FATAL_FAILURE(Fill(*client, 40));
    auto other = Connect();
    ASSERT_NE(other, nullptr);
    ASSERT_EQ(Put(*other, "stays", 1, 1000), OkStatus());
  }
  Stop();
  ASSERT_EQ(controller.DeleteNamespace("gone", Deadline::After(seconds(5))), OkStatus());
  ASSERT_TRUE(controller.CreateNamespace(info, Deadline::After(seconds(5))).ok());
  Start();
  ASSERT_TRUE(TookOver()) << Log();
  auto client = Connect(TransportChoice::kAuto, "gone");
  ASSERT_NE(client, nullptr);
  for (int i = 0; i < 40; ++i) EXPECT_EQ(Get(*client, Key(i)), 0u) << i;
  auto other = Connect();
  ASSERT_NE(other, nullptr);
  EXPECT_EQ(Get(*other, "stays"), 1u);
}

TEST_F(RestartInPlaceTest, WithASsdTierBothAgree) {
  Begin(1, "8000", {"--set", "ssd.capacity_bytes=512MiB"});
  auto client = Connect();
  ASSERT_NE(client, nullptr);
  for (uint64_t round = 1; round <= 4; ++round) {
    ASSERT_NO_FATAL_FAILURE(Fill(*client, 60, round));
    for (int i = 0; i < 60; i += 7) {
      const Status removed = client->Remove(Key(i));
      ASSERT_TRUE(removed.ok() || removed.code() == StatusCode::kNotFound) << removed;
    }
    Stop();
    Start();
    EXPECT_TRUE(TookOver()) << Log();
    for (int i = 0; i < 60; ++i) EXPECT_EQ(Get(*client, Key(i)), i % 7 == 0 ? 0 : round) << i;
  }
  cluster_->server(0).Kill();  // what the tier has is still the newest
  Start();
  for (int i = 0; i < 60; ++i) {
    const uint64_t got = Get(*client, Key(i));
    EXPECT_TRUE(got == 0 || (got == 4 && i % 7 != 0)) << i << " got " << got;
  }
}

}  // namespace
}  // namespace ems::testing
