// What must hold for a client that has seen nothing of the last ten views: no wrong byte, no loop,
// every call within its deadline; and service as before once it hears of the controller again.
#include <gtest/gtest.h>
#include <signal.h>

#include <string>
#include <vector>

#include "cluster/controller_client.h"
#include "cluster/slot_table.h"
#include "tests/support/cluster.h"
#include "tests/support/self_verifying.h"
#include "tests/support/tcp_proxy.h"

namespace ems::testing {
namespace {

constexpr Duration kCallTimeout = std::chrono::seconds(1);
constexpr Duration kSlack = std::chrono::milliseconds(500);

struct Outcome {
  uint64_t hits = 0, misses = 0, errors = 0;
};

// What is found must be the value of the Put that was acknowledged last, `put_id`.
Outcome GetAll(Client* client, const std::vector<std::string>& keys, uint64_t put_id) {
  Outcome outcome;
  for (const std::string& key : keys) {
    const TimePoint start = Clock::System().Now();
    const Result<std::string> value = client->Get(key, {.timeout = kCallTimeout});
    EXPECT_LE(Clock::System().Now() - start, kCallTimeout + kSlack) << value.status();
    if (value.ok()) {
      EXPECT_EQ(VerifyValue("default", key, *value), put_id) << "wrong or old bytes for " << key;
      ++outcome.hits;
    } else {
      ++(value.status().code() == StatusCode::kNotFound ? outcome.misses : outcome.errors);
    }
  }
  return outcome;
}

TEST(OldViewTest, TenViewsBehindThenOneRefresh) {
  Result<std::unique_ptr<Cluster>> started = Cluster::Start(
      {.controller_flags = {"--set", "damping_ms=0", "--set", "settle_ms=0"}, .server_flags = {}});
  ASSERT_TRUE(started.ok()) << started.status();
  Cluster& cluster = **started;
  TcpProxy proxy(cluster.controller_address());
  Result<std::unique_ptr<Client>> behind =
      cluster.Connect(TransportChoice::kTcp, kCallTimeout, proxy.address());
  ASSERT_TRUE(behind.ok()) << behind.status();
  std::vector<std::string> keys;
  for (int i = 0; i < 60; ++i) {
    keys.push_back("key-" + std::to_string(i));
    ASSERT_EQ(
        (*behind)->Put(keys.back(), std::string_view(MakeValue("default", keys.back(), 1, 5000))),
        OkStatus());
  }
  const ViewVersion old_view = (*behind)->views().view()->version();

  proxy.Cut();
  for (int round = 0; round < 5; ++round) {  // a leave and a return: two views each
    cluster.server(0).Signal(SIGTERM);
    ASSERT_TRUE(cluster.server(0).WaitExit(std::chrono::seconds(10)).ok());
    ASSERT_EQ(cluster.WaitForServers(2, std::chrono::seconds(10)), OkStatus());
    ASSERT_EQ(cluster.RestartServer(0), OkStatus());
    ASSERT_EQ(cluster.WaitForServers(3, std::chrono::seconds(10)), OkStatus());
  }
  // One server more gone, so that the old view is wrong about a third of the slots.
  cluster.server(2).Signal(SIGTERM);
  ASSERT_TRUE(cluster.server(2).WaitExit(std::chrono::seconds(10)).ok());
  ASSERT_EQ(cluster.WaitForServers(2, std::chrono::seconds(10)), OkStatus());
  Result<std::unique_ptr<Client>> fresh = cluster.Connect(TransportChoice::kTcp, kCallTimeout);
  ASSERT_TRUE(fresh.ok()) << fresh.status();
  EXPECT_GE((*fresh)->views().view()->version().epoch(), old_view.epoch() + 10);

  const Outcome blind = GetAll(behind->get(), keys, 1);
  EXPECT_EQ((*behind)->views().view()->version(), old_view);
  EXPECT_GT(blind.hits, 0u) << "server-1 was there all the time";

  // Slots taken over a moment ago take no Put for a second.
  const PutOptions patient{.overwrite = true, .timeout = std::chrono::seconds(5)};
  for (const std::string& key : keys) {
    ASSERT_EQ((*fresh)->Put(key, std::string_view(MakeValue("default", key, 2, 6000)), patient),
              OkStatus());
  }
  // Servers that know the new view answer a client that does not, but nothing old.
  const Outcome overwritten = GetAll(behind->get(), keys, 2);
  EXPECT_EQ((*behind)->views().view()->version(), old_view);
  EXPECT_GT(overwritten.hits, 0u) << "server-1 was there all the time";
  proxy.Mend();
  const Deadline deadline = Deadline::After(std::chrono::seconds(10));
  Outcome seeing;
  do {
    seeing = GetAll(behind->get(), keys, 2);
  } while (seeing.hits < keys.size() && !deadline.Passed());
  EXPECT_EQ(seeing.hits, keys.size());
  EXPECT_GE((*behind)->views().view()->version(), (*fresh)->views().view()->version());
}

// A controller that dies while it publishes a view: clients and some servers have it, and nobody
// else is there to bring it to the others.
TEST(OldViewTest, AServerThatMissedTheLastViewOfADeadControllerHasItFromAnother) {
  Result<std::unique_ptr<Cluster>> started =
      Cluster::Start({.controller_flags = {"--set", "damping_ms=0", "--set", "settle_ms=0"},
                      .server_flags = {},
                      .proxied = true});
  ASSERT_TRUE(started.ok()) << started.status();
  Cluster& cluster = **started;
  Result<std::unique_ptr<Client>> client = cluster.Connect(TransportChoice::kTcp, kCallTimeout);
  ASSERT_TRUE(client.ok()) << client.status();
  const ViewCache::View before = (*client)->views().view();
  const auto node_of = [](const DhtView& view, const std::string& name) {
    for (const NodeInfo& node : view.nodes())
      if (node.name == name) return node.id;
    return kNoNode;
  };
  const NodeId behind = node_of(*before, Cluster::ServerName(2));
  const NamespaceId ns = (*client)->name_space().ref.id;
  std::vector<std::string> keys;
  for (int i = 0; keys.size() < 30; ++i) {
    const std::string key = "key-" + std::to_string(i);
    if (before->OwnerId(SlotOf(ns, key)) == behind) keys.push_back(key);
  }
  const PutOptions patient{.overwrite = true, .timeout = std::chrono::seconds(10)};
  for (const std::string& key : keys)
    ASSERT_EQ((*client)->Put(key, std::string_view(MakeValue("default", key, 1, 5000)), patient),
              OkStatus());

  cluster.control_link(2).Set(Way::kToClient, {.carry = Carry::kStall});
  ControllerClient control(cluster.controller_address(), "test");
  const Deadline soon = Deadline::After(std::chrono::seconds(20));
  ASSERT_EQ(control.DrainNode(Cluster::ServerName(1), false, soon), OkStatus());
  // The next view is the client's, and that of a server at least.
  ViewCache::View after;
  do {
    after = (*client)->views().WaitForView(
        ViewVersion(before->version().term(), before->version().epoch() + 1), soon);
    ASSERT_NE(after, nullptr);
  } while (after->slots().CountOf(node_of(*after, Cluster::ServerName(1))) != 0);
  const NodeId current = node_of(*after, Cluster::ServerName(0));
  for (int i = 0, asked = 0; asked < 3; ++i) {
    const std::string key = "other-" + std::to_string(i);
    if (after->OwnerId(SlotOf(ns, key)) != current) continue;
    ++asked;
    Status status;
    do {
      status = (*client)->Get(key).status();
    } while (status.code() != StatusCode::kNotFound && !soon.Passed());
    ASSERT_EQ(status.code(), StatusCode::kNotFound) << status;
  }
  cluster.controller().Kill();

  const TimePoint begin = Clock::System().Now();
  for (const std::string& key : keys) {
    ASSERT_EQ(after->OwnerId(SlotOf(ns, key)), behind);
    Result<std::string> value = Error(StatusCode::kInternal, "not asked");
    Status put;
    const Deadline deadline = Deadline::After(std::chrono::seconds(15));
    do {
      value = (*client)->Get(key, {.timeout = kCallTimeout});
    } while (!value.ok() && !deadline.Passed());
    ASSERT_TRUE(value.ok()) << key << ": " << value.status();
    EXPECT_EQ(VerifyValue("default", key, *value), 1U);
    do {
      put = (*client)->Put(key, std::string_view(MakeValue("default", key, 2, 5000)),
                           {.overwrite = true, .timeout = kCallTimeout});
    } while (!put.ok() && !deadline.Passed());
    ASSERT_EQ(put, OkStatus()) << key;
  }
  const auto took =
      std::chrono::duration_cast<std::chrono::milliseconds>(Clock::System().Now() - begin);
  ::testing::Test::RecordProperty("ms_until_served", static_cast<int>(took.count()));
  EXPECT_NE(cluster.server(2).ReadLog().find("came from another server"), std::string::npos);
}

}  // namespace
}  // namespace ems::testing
