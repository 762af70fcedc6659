// What must hold: in a namespace with replicas the death of a server costs no hit, during the
// take-over and after it, and never a wrong byte.
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "cluster/controller_client.h"
#include "tests/support/cluster.h"
#include "tests/support/eventually.h"
#include "tests/support/raw_connection.h"

namespace ems::testing {
namespace {

using std::chrono::seconds;

constexpr int kKeys = 600;
constexpr Duration kSoon = seconds(20);

class ReplicasE2eTest : public ::testing::TestWithParam<TransportChoice> {
 protected:
  void Begin(int servers, uint32_t replicas) {
    auto started = Cluster::Start(
        {.servers = servers,
         .controller_flags = {"--set", "lease_ms=1000", "--set", "damping_ms=0"},
         .server_flags = {"--set", "forward.timeout_ms=1000", "--set", "copies.repair_s=1"}});
    ASSERT_TRUE(started.ok()) << started.status();
    cluster_ = *std::move(started);
    NamespaceInfo wanted;
    wanted.name = "kv";
    wanted.immutable = true;
    wanted.replicas = replicas;
    ControllerClient controller(cluster_->controller_address(), "test");
    Result<NamespaceInfo> made = Error(StatusCode::kUnavailable, "not asked yet");
    ASSERT_TRUE(Eventually([&] {
      made = controller.CreateNamespace(wanted, Deadline::After(seconds(5)));
      return made.ok();
    })) << made.status();
    EXPECT_EQ(made->replicas, replicas);
    ClientOptions options;
    options.controller = cluster_->controller_address();
    options.name_space = "kv";
    options.transport = GetParam();
    auto connected = Client::Connect(options);
    ASSERT_TRUE(connected.ok()) << connected.status();
    client_ = *std::move(connected);
    ASSERT_TRUE(Eventually([&] {
      const auto view = client_->views().view();
      return view->copies().empty() == (replicas == 1 || servers == 1);
    }));
  }
  static std::string ValueOf(int key) {
    return std::string(100 + static_cast<size_t>(key) * 37 % 9000,
                       static_cast<char>('a' + key % 26)) +
           std::to_string(key);
  }
  static std::string KeyOf(int key) { return "key-" + std::to_string(key); }
  void Put() {
    for (int i = 0; i < kKeys; ++i) {
      Status put;
      ASSERT_TRUE(Eventually([&] {
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
    for (int i = 0; i < kKeys; ++i) names.push_back(KeyOf(i));
    std::vector<KeyItem> keys;
    keys.reserve(names.size());
    for (const std::string& name : names) keys.push_back({.key = name});
    int there = 0;
    for (const auto& one : client_->MultiExists(keys)) there += one.ok() && *one ? 1 : 0;
    return there;
  }
  void AwaitServers(int servers) {
    ASSERT_EQ(cluster_->WaitForServers(servers, kSoon), OkStatus());
    ASSERT_TRUE(Eventually(
        [&] { return client_->views().view()->nodes().size() == static_cast<size_t>(servers); }));
  }
  // The row of a server's /metrics that begins with `name`; 0: there is none.
  double Metric(int server, const std::string& name) {
    const std::string page =
        HttpGet(cluster_->server(server).ready().http_address, "/metrics").value_or("");
    const size_t at = page.find("\n" + name + " ");
    return at == std::string::npos ? 0 : std::strtod(page.c_str() + at + name.size() + 2, nullptr);
  }
  double Objects(const std::vector<int>& servers) {
    double all = 0;
    for (const int server : servers) all += Metric(server, "ems_server_objects{namespace=\"kv\"}");
    return all;
  }
  void AwaitObjects(const std::vector<int>& servers, double wanted) {
    double all = 0;
    ASSERT_TRUE(Eventually([&] {
      all = Objects(servers);
      return all == wanted;
    })) << all
        << " of " << wanted;
  }

  std::unique_ptr<Cluster> cluster_;
  std::unique_ptr<Client> client_;
};

TEST_P(ReplicasE2eTest, AKilledServerCostsNoHit) {
  Begin(3, 2);
  Put();
  AwaitObjects({0, 1, 2}, 2 * kKeys);
  cluster_->server(1).Kill();
  EXPECT_EQ(Hits(), kKeys) << "while it counts as alive still";
  EXPECT_GT(client_->stats().copies_asked, 0U);
  AwaitServers(2);
  EXPECT_EQ(Hits(), kKeys) << "once its slots are others'";
  EXPECT_EQ(Existing(), kKeys);
  AwaitObjects({0, 2}, 2 * kKeys);  // repaired
  cluster_->server(0).Kill();
  EXPECT_EQ(Hits(), kKeys) << "as copies were made again";
}

TEST_P(ReplicasE2eTest, WithoutReplicasAThirdIsLost) {
  Begin(3, 1);
  Put();
  cluster_->server(1).Kill();
  AwaitServers(2);
  const int hits = Hits();
  EXPECT_LT(hits, kKeys * 8 / 10);
  EXPECT_GT(hits, kKeys / 2);
}

TEST_P(ReplicasE2eTest, AServerThatComesBackEmptyIsFilled) {
  Begin(2, 2);
  Put();
  AwaitObjects({0, 1}, 2 * kKeys);
  cluster_->server(1).Kill();
  ASSERT_EQ(cluster_->RestartServer(1), OkStatus());
  AwaitServers(2);
  EXPECT_EQ(Hits(), kKeys);
  AwaitObjects({0, 1}, 2 * kKeys);
  cluster_->server(0).Kill();
  EXPECT_EQ(Hits(), kKeys);
}

TEST_P(ReplicasE2eTest, RemovesAndDeletionsReachTheCopies) {
  Begin(3, 3);
  Put();
  AwaitObjects({0, 1, 2}, 3 * kKeys);
  for (int i = 0; i < kKeys / 2; ++i) EXPECT_EQ(client_->Remove(KeyOf(i)), OkStatus());
  AwaitObjects({0, 1, 2}, 3 * (kKeys - kKeys / 2));
  cluster_->server(2).Kill();
  AwaitServers(2);
  EXPECT_EQ(Hits(), kKeys - kKeys / 2) << "what was removed does not come back";
  ControllerClient controller(cluster_->controller_address(), "test");
  ASSERT_EQ(controller.DeleteNamespace("kv", Deadline::After(seconds(5))), OkStatus());
  AwaitObjects({0, 1}, 0);
}

INSTANTIATE_TEST_SUITE_P(Transports, ReplicasE2eTest,
                         ::testing::Values(TransportChoice::kAuto, TransportChoice::kTcp),
                         [](const auto& one) {
                           return one.param == TransportChoice::kTcp ? "Tcp" : "Shared";
                         });

}  // namespace
}  // namespace ems::testing
