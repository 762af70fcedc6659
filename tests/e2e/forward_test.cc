// What must hold: a server that joins, or comes back without its memory, costs no hit of what the
// servers that stay have: the new owners of slots get it from those that had them.
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/cluster.h"
#include "tests/support/eventually.h"
#include "tests/support/raw_connection.h"

namespace ems::testing {
namespace {

using std::chrono::seconds;

constexpr int kKeys = 600;
constexpr Duration kSoon = seconds(20);
// Hits are counted here, not their time, on a machine that others use as well.
const std::vector<std::string> kPatient = {"--set", "forward.timeout_ms=1000"};

class ForwardE2eTest : public ::testing::TestWithParam<TransportChoice> {
 protected:
  void Begin(int servers, std::vector<std::string> flags = {}) {
    auto started =
        Cluster::Start({.servers = servers,
                        .controller_flags = {"--set", "lease_ms=1000", "--set", "damping_ms=0"},
                        .server_flags = std::move(flags)});
    ASSERT_TRUE(started.ok()) << started.status();
    cluster_ = *std::move(started);
    auto connected = cluster_->Connect(GetParam());
    ASSERT_TRUE(connected.ok()) << connected.status();
    client_ = *std::move(connected);
  }
  static std::string ValueOf(int key) {
    return std::string(100 + static_cast<size_t>(key) * 37 % 9000,
                       static_cast<char>('a' + key % 26)) +
           std::to_string(key);
  }
  static std::string KeyOf(int key) { return "key-" + std::to_string(key); }
  // What is not there, or all.
  void Put() {
    for (int i = 0; i < kKeys; ++i) {
      Status put;
      EXPECT_TRUE(Eventually([&] {
        put = client_->Put(KeyOf(i), std::string_view(ValueOf(i)));
        return put.ok();
      })) << put;
    }
  }
  int Hits() {
    int hits = 0;
    for (int i = 0; i < kKeys; ++i) {
      const Result<std::string> got = client_->Get(KeyOf(i));
      if (!got.ok()) continue;
      EXPECT_EQ(*got, ValueOf(i)) << KeyOf(i);
      ++hits;
    }
    return hits;
  }
  int Existing() {
    std::vector<std::string> names;
    names.reserve(kKeys);
    for (int i = 0; i < kKeys; ++i) names.push_back(KeyOf(i));
    std::vector<KeyItem> keys;
    keys.reserve(names.size());
    for (const std::string& name : names) keys.push_back({.key = name});
    const auto found = client_->MultiExists(keys);
    int there = 0;
    for (const auto& one : found) there += one.ok() && *one ? 1 : 0;
    return there;
  }
  // A view of so many servers is installed everywhere, as the client sees it.
  void AwaitServers(int servers) {
    ASSERT_EQ(cluster_->WaitForServers(servers, kSoon), OkStatus());
    ASSERT_TRUE(Eventually([&] {
      const auto view = client_->views().view();
      return view != nullptr && view->nodes().size() == static_cast<size_t>(servers);
    }));
  }

  // The row of a server's /metrics that begins with `name`; -1: there is none.
  double Metric(int server, const std::string& name) {
    const std::string page =
        HttpGet(cluster_->server(server).ready().http_address, "/metrics").value_or("");
    const size_t at = page.find("\n" + name + " ");
    return at == std::string::npos ? -1 : std::strtod(page.c_str() + at + name.size() + 2, nullptr);
  }

  std::unique_ptr<Cluster> cluster_;
  std::unique_ptr<Client> client_;
};

TEST_P(ForwardE2eTest, OnceAllHasComeTheOldOwnerMayDie) {
  Begin(2, kPatient);
  cluster_->server(1).Signal(SIGTERM);
  ASSERT_TRUE(cluster_->server(1).WaitExit(kSoon).ok());
  AwaitServers(1);
  Put();
  ASSERT_EQ(cluster_->RestartServer(1), OkStatus());
  AwaitServers(2);
  EXPECT_TRUE(Eventually([&] {
    return Metric(1, "ems_server_migrated_slots_total{result=\"closed\"}") > 0 &&
           Metric(1, "ems_server_open_slots") == 0;
  }));
  const double moved = Metric(1, "ems_server_migrated_keys_total");
  EXPECT_GT(moved, kKeys / 4);
  EXPECT_EQ(moved + Metric(0, "ems_server_objects{namespace=\"default\"}"), kKeys);
  EXPECT_EQ(Metric(1, "ems_server_forwards_total{result=\"hit\"}"), 0) << "nothing was asked for";
  cluster_->server(0).Kill();
  AwaitServers(1);
  EXPECT_EQ(Hits(), moved);
}

TEST_P(ForwardE2eTest, AServerThatJoinsCostsNoHit) {
  Begin(4, kPatient);
  cluster_->server(3).Signal(SIGTERM);
  ASSERT_TRUE(cluster_->server(3).WaitExit(kSoon).ok());
  AwaitServers(3);
  Put();
  EXPECT_EQ(Hits(), kKeys);
  ASSERT_EQ(cluster_->RestartServer(3), OkStatus());
  AwaitServers(4);
  EXPECT_EQ(Existing(), kKeys);
  EXPECT_EQ(Hits(), kKeys);
  EXPECT_EQ(Hits(), kKeys) << "as stored there by now";
}

TEST_P(ForwardE2eTest, AKilledServerThatComesBackFindsWhatOthersTookMeanwhile) {
  Begin(3, kPatient);
  Put();
  cluster_->server(1).Kill();
  AwaitServers(2);
  const int left = Hits();
  EXPECT_GT(left, kKeys / 2) << "what the others had";
  EXPECT_LT(left, kKeys);
  Put();
  EXPECT_EQ(Hits(), kKeys);
  ASSERT_EQ(cluster_->RestartServer(1), OkStatus());
  AwaitServers(3);
  EXPECT_EQ(Existing(), kKeys);
  EXPECT_EQ(Hits(), kKeys);
}

TEST_P(ForwardE2eTest, WithoutItWhatMovesIsLost) {
  Begin(3, {"--set", "forward.keep_s=0"});
  cluster_->server(2).Kill();
  AwaitServers(2);
  Put();
  ASSERT_EQ(cluster_->RestartServer(2), OkStatus());
  AwaitServers(3);
  EXPECT_LT(Hits(), kKeys);
}

INSTANTIATE_TEST_SUITE_P(Transports, ForwardE2eTest,
                         ::testing::Values(TransportChoice::kAuto, TransportChoice::kTcp),
                         [](const auto& one) {
                           return one.param == TransportChoice::kTcp ? "Tcp" : "Shared";
                         });

}  // namespace
}  // namespace ems::testing
