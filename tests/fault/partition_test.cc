// What must hold when a server, or a client, cannot reach some of the others: no two servers take
// Puts of one slot at the same time, nobody's word alone changes the view, and all serve again when
// the partition is over.
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <optional>

#include "cluster/slot_table.h"
#include "common/thread_pool.h"
#include "tests/support/cluster.h"
#include "tests/support/eventually.h"
#include "tests/support/paths.h"
#include "tests/support/self_verifying.h"
#include "tests/support/verified_load.h"

namespace ems::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Duration kCallTimeout = milliseconds(500);
constexpr Duration kSlack = milliseconds(500);

class PartitionTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto started =
        Cluster::Start({.controller_flags = {"--set", "lease_ms=2000", "--set", "heartbeat_ms=100",
                                             "--set", "damping_ms=0", "--set", "settle_ms=0"},
                        .server_flags = {},
                        .server_environment = environment_,
                        .proxied = true});
    ASSERT_TRUE(started.ok()) << started.status();
    cluster_ = *std::move(started);
    auto client = cluster_->Connect(TransportChoice::kTcp, kCallTimeout);
    ASSERT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
  }
  static NodeId OwnerOf(Client& client, const std::string& key) {
    return client.views().view()->OwnerId(SlotOf(client.name_space().ref.id, key));
  }
  NodeId IdOf(int server) const {
    for (const NodeInfo& node : client_->views().view()->nodes()) {
      if (node.name == Cluster::ServerName(server)) return node.id;
    }
    return kNoNode;
  }
  // Some key of the server's.
  std::string KeyOf(int server) const {
    for (int i = 0;; ++i) {
      const std::string key = "key-" + std::to_string(i);
      if (OwnerOf(*client_, key) == IdOf(server)) return key;
    }
  }

  std::vector<std::string> environment_;  // of the servers
  std::unique_ptr<Cluster> cluster_;
  std::unique_ptr<Client> client_;
};

// A client and the server that it writes to lose the controller together, so neither hears of the
// view in which the server's slots are another's.
class LostControllerTest : public PartitionTest {
 protected:
  void SetUp() override {
    PartitionTest::SetUp();
    if (HasFatalFailure()) return;
    way_ = std::make_unique<TcpProxy>(cluster_->controller_address());
    auto behind = cluster_->Connect(TransportChoice::kTcp, kCallTimeout, way_->address());
    ASSERT_TRUE(behind.ok()) << behind.status();
    behind_ = *std::move(behind);
    key_ = KeyOf(0);
    // Servers hold slots until they hear that no other one takes Puts for them.
    ASSERT_TRUE(Eventually([&] { return Put(behind_.get(), 1).ok(); }));
  }
  Status Put(Client* client, uint64_t put_id) {
    return client->Put(key_, std::string_view(MakeValue("default", key_, put_id, 1000)),
                       {.overwrite = true});
  }
  // Whether a Get of the client's finds this Put's value, or nothing.
  void ExpectNothingBut(Client* client, uint64_t put_id) {
    // A server has its lease with the first heartbeat after it has installed the view.
    Result<std::string> value = Error(StatusCode::kUnavailable, "not asked yet");
    EXPECT_TRUE(Eventually([&] {
      value = client->Get(key_);
      return value.status().code() != StatusCode::kUnavailable;
    }));
    if (value.ok()) {
      EXPECT_EQ(VerifyValue("default", key_, *value), put_id);
    } else {
      EXPECT_EQ(value.status().code(), StatusCode::kNotFound) << value.status();
    }
  }
  // Both clients write on until the slot's new owner has taken a Put and the old one refuses: the
  // old one may not take any from the moment that the new one does.
  void WriteThroughTheTakeOver(Duration take_over_max) {
    ASSERT_EQ(Put(behind_.get(), 1), OkStatus());
    std::atomic<int64_t> old_owner_took{0};  // when its last acknowledged Put began
    std::atomic<int> refused{0};             // one after the other
    StopFlag stop;
    Thread writer("behind", [&] {
      for (uint64_t put_id = 1'000'000; !stop.IsSet(); ++put_id) {
        const TimePoint began = Clock::System().Now();
        if (Put(behind_.get(), put_id).ok()) {
          old_owner_took.store(began.time_since_epoch().count());
          refused.store(0);
        } else {
          refused.fetch_add(1);
        }
      }
    });
    const NodeId old_owner = OwnerOf(*behind_, key_);
    std::optional<TimePoint> new_owner_took;
    uint64_t put_id = 1;
    EXPECT_TRUE(Eventually(
        [&] {
          if (OwnerOf(*client_, key_) == old_owner || !Put(client_.get(), ++put_id).ok())
            return false;
          new_owner_took = Clock::System().Now();
          return true;
        },
        take_over_max))
        << "no new owner in time";
    EXPECT_TRUE(Eventually([&] { return refused.load() >= 20; }))
        << "a server without a lease takes Puts";
    stop.Set();
    writer.Join();
    EXPECT_EQ(OwnerOf(*behind_, key_), old_owner) << "the partition leaks";
    if (new_owner_took) {
      const Duration overlap = TimePoint(Duration(old_owner_took.load())) - *new_owner_took;
      EXPECT_LT(overlap / milliseconds(1), 0) << "ms in which two servers took Puts of one slot";
    }
    last_put_ = put_id;
    EXPECT_FALSE(behind_->Get(key_).ok()) << "what the old owner has has been replaced";
  }
  void ExpectAllServeTheNewestValue() {
    way_->Mend();
    cluster_->control_link(0).Mend();
    ASSERT_EQ(cluster_->WaitForServers(3, seconds(10)), OkStatus());
    ASSERT_TRUE(Eventually([&] { return behind_->views().view()->nodes().size() == 3; }));
    for (Client* client : {client_.get(), behind_.get()}) ExpectNothingBut(client, last_put_);
    ASSERT_TRUE(Eventually([&] { return Put(behind_.get(), last_put_ + 1).ok(); }));
    ExpectNothingBut(client_.get(), last_put_ + 1);
    EXPECT_TRUE(client_->Get(key_).ok());
  }

  std::unique_ptr<TcpProxy> way_;  // of the client that is behind to the controller
  std::unique_ptr<Client> behind_;
  std::string key_;  // of server 0
  uint64_t last_put_ = 0;
};

TEST_F(LostControllerTest, ClosedConnectionsTheOldOwnerStopsBeforeTheNewOneBegins) {
  way_->Cut();
  cluster_->control_link(0).Cut();
  WriteThroughTheTakeOver(seconds(10));
  ExpectAllServeTheNewestValue();
}

TEST_F(LostControllerTest, HeardButDeafTheOldOwnerStopsBeforeTheNewOneBegins) {
  way_->Cut();
  // The server's heartbeats arrive for as long as its connection lives, and no answer does.
  cluster_->control_link(0).Set(Way::kToClient, {.carry = Carry::kSwallow});
  WriteThroughTheTakeOver(seconds(20));
  ExpectAllServeTheNewestValue();
}

// Nothing may be preloaded before AddressSanitizer's own library.
#if !defined(__SANITIZE_ADDRESS__)

// The server cannot note the view in which its slots are another's. It hears all else.
class HungDiskTest : public LostControllerTest {
 protected:
  void SetUp() override {
    environment_ = {"LD_PRELOAD=" + BinDir() + "/../tests/bin/libhang_sync.so"};
    LostControllerTest::SetUp();
    if (HasFatalFailure()) return;
    cluster_->server(2).Kill();
    ASSERT_EQ(cluster_->WaitForServers(2, seconds(10)), OkStatus());
    ASSERT_TRUE(Eventually([&] { return behind_->views().view()->nodes().size() == 2; }));
    ASSERT_TRUE(Eventually([&] { return client_->views().view()->nodes().size() == 2; }));
    // The two take Puts for the slots of the third.
    ASSERT_TRUE(Eventually([&] {
      for (int i = 0; i < 64; ++i) {
        key_ = "moves-" + std::to_string(i);
        if (!Put(behind_.get(), 1).ok()) return false;
      }
      return true;
    }));
  }
  void SetHang(bool hangs) {
    const std::string path = cluster_->folder() + "/" + Cluster::ServerName(0) + "/hang";
    if (hangs) {
      std::ofstream{path};
    } else {
      std::filesystem::remove(path);
    }
  }
};

TEST_F(HungDiskTest, AServerThatCannotNoteAViewLosesItsLeaseBeforeOthersTakePuts) {
  const NodeId old_owner = IdOf(0);
  way_->Cut();
  SetHang(true);
  ASSERT_EQ(cluster_->RestartServer(2), OkStatus());
  ASSERT_TRUE(Eventually([&] { return client_->views().view()->nodes().size() == 3; }));
  for (int i = 0; i < 100'000; ++i) {
    key_ = "moves-" + std::to_string(i);
    if (OwnerOf(*behind_, key_) == old_owner && OwnerOf(*client_, key_) == IdOf(2)) break;
  }
  WriteThroughTheTakeOver(seconds(10));
  SetHang(false);
  ExpectAllServeTheNewestValue();
}

// Its thread that tells such clients until when it may be believed waits for the disk.
TEST_F(HungDiskTest, AServerThatIsStoppedIsReadNoMoreByClientsOnItsHost) {
  auto connected = cluster_->Connect(TransportChoice::kAuto, kCallTimeout, way_->address());
  ASSERT_TRUE(connected.ok()) << connected.status();
  Client& near = **connected;
  key_ = KeyOf(0);
  ASSERT_EQ(Put(client_.get(), 1), OkStatus());
  const auto reads_alone = [&] {
    const uint64_t before = near.stats().one_sided;
    return near.Get(key_).ok() && near.stats().one_sided > before;
  };
  ASSERT_TRUE(Eventually(reads_alone));
  const NodeId old_owner = IdOf(0);
  way_->Cut();
  SetHang(true);
  ASSERT_EQ(cluster_->RestartServer(2), OkStatus());
  ASSERT_TRUE(Eventually([&] { return client_->views().view()->nodes().size() == 3; }));
  cluster_->server(0).Signal(SIGTERM);
  ASSERT_TRUE(Eventually(
      [&] { return OwnerOf(*client_, key_) != old_owner && Put(client_.get(), 2).ok(); }));
  const Deadline lease = Deadline::After(seconds(2));
  while (!lease.Passed()) {
    const Result<std::string> value = near.Get(key_);
    if (value.ok()) {
      ASSERT_EQ(VerifyValue("default", key_, *value), 2u) << "what was replaced";
    }
  }
  SetHang(false);
}

#endif

TEST_F(PartitionTest, AServerThatClientsCannotReachKeepsItsSlots) {
  VerifiedLoad load(
      client_.get(),
      {.threads = 4, .keys = 120, .value_bytes_max = 64 * kKiB, .timeout = kCallTimeout});
  ASSERT_TRUE(load.WaitForCalls(400, seconds(20)));
  LoadCounts counts = load.Take();
  EXPECT_TRUE(counts.errors.empty()) << counts.ToText();
  const ViewVersion before = client_->views().view()->version();

  // Packets are lost in both directions: no connection ends, and none begins.
  cluster_->data_link(1).Set(Way::kToTarget, {.carry = Carry::kVanish});
  cluster_->data_link(1).Set(Way::kToClient, {.carry = Carry::kVanish});
  ASSERT_TRUE(load.WaitForCalls(400, seconds(30)));
  counts = load.Take();
  EXPECT_TRUE(counts.right()) << counts.ToText();
  EXPECT_FALSE(counts.errors.empty()) << "nothing was partitioned";
  EXPECT_LE(counts.slowest, kCallTimeout + kSlack) << counts.ToText();
  EXPECT_GT(counts.hit_share(), 0.3) << "the other servers suffer: " << counts.ToText();
  EXPECT_EQ(client_->views().view()->version(), before) << "the controller hears the server";

  cluster_->data_link(1).Mend();
  EXPECT_TRUE(Eventually([&] {
    (void)load.Take();
    return load.WaitForCalls(100, seconds(5)) && load.Take().errors.empty();
  })) << "it does not serve again";
  ASSERT_TRUE(load.WaitForCalls(300, seconds(20)));
  load.Stop();
  counts = load.Take();
  EXPECT_TRUE(counts.right()) << counts.ToText();
  EXPECT_GT(counts.hit_share(), 0.5) << counts.ToText();
}

TEST_F(PartitionTest, AnswersThatAreLostCostTheDeadlineAndNoValue) {
  VerifiedLoad load(
      client_.get(),
      {.threads = 4, .keys = 120, .value_bytes_max = 64 * kKiB, .timeout = kCallTimeout});
  ASSERT_TRUE(load.WaitForCalls(400, seconds(20)));
  LoadCounts counts = load.Take();
  EXPECT_TRUE(counts.errors.empty()) << counts.ToText();

  // Requests arrive and are carried out.
  cluster_->data_link(1).Set(Way::kToClient, {.carry = Carry::kVanish});
  ASSERT_TRUE(load.WaitForCalls(400, seconds(30)));
  counts = load.Take();
  EXPECT_TRUE(counts.right()) << counts.ToText();
  EXPECT_FALSE(counts.errors.empty()) << "nothing was lost";
  EXPECT_LE(counts.slowest, kCallTimeout + kSlack) << counts.ToText();

  cluster_->data_link(1).Mend();
  EXPECT_TRUE(Eventually([&] {
    (void)load.Take();
    return load.WaitForCalls(100, seconds(5)) && load.Take().errors.empty();
  })) << "it does not serve again";
  ASSERT_TRUE(load.WaitForCalls(300, seconds(20)));
  load.Stop();
  counts = load.Take();
  EXPECT_TRUE(counts.right()) << counts.ToText();
  EXPECT_GT(counts.hit_share(), 0.5) << counts.ToText();
}

}  // namespace
}  // namespace ems::testing
