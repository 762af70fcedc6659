// What must hold: a server that evicts younger objects than others is given some of their part of
// the quota, and all parts together stay within it.
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "cluster/controller_client.h"
#include "cluster/slot_table.h"
#include "tests/support/cluster.h"
#include "tests/support/eventually.h"

namespace ems::testing {
namespace {

using std::chrono::seconds;

constexpr uint64_t kQuota = 4 * kMiB;
constexpr size_t kValueBytes = 4 * kKiB;
constexpr int kPutsARound = 100;
constexpr int kSeldom = 10;  // the server that has time gets one of so many keys

class QuotaPartsE2eTest : public ::testing::Test {
 protected:
  void Begin() {
    auto started = Cluster::Start(
        {.servers = 2, .controller_flags = {"--set", "heartbeat_ms=20"}, .server_flags = {}});
    ASSERT_TRUE(started.ok()) << started.status();
    cluster_ = *std::move(started);
    NamespaceInfo wanted;
    wanted.name = "kv";
    wanted.dram_quota_bytes = kQuota;
    ControllerClient controller(cluster_->controller_address(), "test");
    const auto made = controller.CreateNamespace(wanted, Deadline::After(seconds(5)));
    ASSERT_TRUE(made.ok()) << made.status();
    ref_ = made->ref;
    ClientOptions options;
    options.controller = cluster_->controller_address();
    options.name_space = "kv";
    auto connected = Client::Connect(options);
    ASSERT_TRUE(connected.ok()) << connected.status();
    client_ = *std::move(connected);
  }
  // New values, most of them of keys that belong to server 0.
  void PutSome() {
    const auto view = client_->views().view();
    const std::string value(kValueBytes, 'v');
    for (int i = 0; i < kPutsARound; ++i) {
      const std::string key = "k" + std::to_string(next_++);
      const NodeInfo* const owner = view->Find(view->slots().owner(SlotOf(ref_.id, key)));
      ASSERT_NE(owner, nullptr);
      if (owner->name != Cluster::ServerName(0) && next_ % kSeldom != 0) continue;
      EXPECT_EQ(client_->Put(key, std::string_view(value)), OkStatus());
    }
  }
  uint64_t PartOf(int server) {
    const auto text = client_->ServerStats(Cluster::ServerName(server), seconds(5));
    EXPECT_TRUE(text.ok()) << text.status();
    const auto stats = nlohmann::json::parse(text.value_or("{}"), nullptr, false);
    for (const auto& one : stats["namespaces"])
      if (one["name"] == "kv") return one["quota_bytes"];
    return 0;
  }

  std::unique_ptr<Cluster> cluster_;
  std::unique_ptr<Client> client_;
  NamespaceRef ref_;
  int next_ = 0;
};

TEST_F(QuotaPartsE2eTest, TheBusyServerGetsMoreOfTheQuota) {
  Begin();
  std::array<uint64_t, 2> parts{};
  EXPECT_TRUE(Eventually(
      [&] {
        PutSome();
        parts = {PartOf(0), PartOf(1)};
        return parts[0] > kQuota * 6 / 10;
      },
      seconds(60)))
      << parts[0] << " and " << parts[1];
  EXPECT_LE(parts[0] + parts[1], kQuota);
}

}  // namespace
}  // namespace ems::testing
