// What must hold for the SSD tier with real daemons: what was acknowledged as durable is there
// after kill -9 and a restart, what was removed or replaced is not, and what DRAM has no room for
// is a hit. For how long a server was away does not matter, what others did meanwhile does.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>

#include "cluster/controller_client.h"
#include "tests/support/cluster.h"
#include "tests/support/eventually.h"
#include "tests/support/self_verifying.h"

namespace ems::testing {
namespace {

using std::chrono::seconds;

constexpr const char* kNs = "default";

class SsdRestartTest : public ::testing::Test {
 protected:
  void StartCluster(std::vector<std::string> flags, int servers = 1,
                    const std::string& lease = "lease_ms=5000") {
    flags.insert(flags.end(), {"--set", "ssd.capacity_bytes=512MiB", "--set", "dram.bytes=64MiB"});
    auto started = Cluster::Start({.servers = servers,
                                   .controller_flags = {"--set", "damping_ms=0", "--set", lease},
                                   .server_flags = flags});
    ASSERT_TRUE(started.ok()) << started.status();
    cluster_ = *std::move(started);
    Connect();
  }
  void Connect() {
    client_.reset();
    auto client = cluster_->Connect(TransportChoice::kAuto, seconds(10));
    ASSERT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
  }
  void KillAndRestart() {
    cluster_->server(0).Kill();
    ASSERT_EQ(cluster_->RestartServer(0), OkStatus());
    ASSERT_EQ(cluster_->WaitForServers(1, seconds(10)), OkStatus());
    Connect();
  }
  // Until all leases have ended.
  bool WaitUntilFrozen() {
    ControllerClient controller(cluster_->controller_address(), "test");
    return Eventually(
        [&] {
          ViewCache cache;
          (void)controller.Refresh(&cache, Deadline::After(seconds(1)));
          return cache.view() != nullptr && cache.view()->frozen();
        },
        seconds(30));
  }
  Status Put(const std::string& key, uint64_t put_id, size_t bytes, Durability durability) {
    const std::string value = MakeValue(kNs, key, put_id, bytes);
    const ConstBytes part = AsBytes(value);
    PutOptions options;
    options.overwrite = true;
    options.durability = durability;
    // A server that has just come back may still ask to wait.
    Status status;
    for (int i = 0; i < 3; ++i) {
      status = client_->Put(key, part, options);
      if (status.ok()) break;
    }
    return status;
  }
  // The put id; 0: a miss; nullopt: wrong bytes or an error.
  std::optional<uint64_t> Get(const std::string& key) {
    const Result<std::string> value = client_->Get(key);
    if (value.status().code() == StatusCode::kNotFound) return 0;
    if (!value.ok()) {
      ADD_FAILURE() << key << ": " << value.status();
      return std::nullopt;
    }
    return VerifyValue(kNs, key, *value);
  }

  std::unique_ptr<Cluster> cluster_;
  std::unique_ptr<Client> client_;
};

TEST_F(SsdRestartTest, DurablePutsAndRemovesHoldOverKillNine) {
  StartCluster({});
  std::mt19937_64 random(7);
  std::map<std::string, uint64_t> expected;  // 0: removed
  uint64_t put_id = 0;
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 150; ++i) {
      const std::string key = "key-" + std::to_string(random() % 100);
      if (random() % 5 == 0) {
        const Status removed = client_->Remove(key);
        ASSERT_TRUE(removed.ok() || removed.code() == StatusCode::kNotFound) << removed;
        expected[key] = 0;
        continue;
      }
      const size_t bytes = 8 + random() % (random() % 4 == 0 ? 2 * kMiB : 20 * kKiB);
      ASSERT_EQ(Put(key, ++put_id, bytes, Durability::kSsd), OkStatus());
      expected[key] = put_id;
    }
    KillAndRestart();
    for (const auto& [key, id] : expected) EXPECT_EQ(Get(key), id) << key << " round " << round;
  }
}

TEST_F(SsdRestartTest, ALongAbsenceLosesNothingThatNobodyElseServed) {
  StartCluster({}, 1, "lease_ms=1000");
  for (int i = 0; i < 60; ++i)
    ASSERT_EQ(Put("l" + std::to_string(i), 3, 40 * kKiB, Durability::kSsd), OkStatus());
  for (int round = 0; round < 3; ++round) {
    cluster_->server(0).Kill();
    ASSERT_TRUE(WaitUntilFrozen());
    ASSERT_EQ(cluster_->RestartServer(0), OkStatus());
    ASSERT_EQ(cluster_->WaitForServers(1, seconds(10)), OkStatus());
    Connect();
    for (int i = 0; i < 60; ++i) EXPECT_EQ(Get("l" + std::to_string(i)), 3u) << i << " " << round;
  }
}

TEST_F(SsdRestartTest, ServersThatComeBackOneAfterTheOtherFindAllTheyHad) {
  // One that takes longer than a lease to come after the one before it is not waited for.
  StartCluster({}, 3, "lease_ms=8000");
  for (int i = 0; i < 120; ++i)
    ASSERT_EQ(Put("p" + std::to_string(i), 4, 40 * kKiB, Durability::kSsd), OkStatus());
  for (int i = 0; i < 3; ++i) cluster_->server(i).Kill();
  ASSERT_TRUE(WaitUntilFrozen());
  // Each is in a view of its own before the next one starts.
  for (int i = 0; i < 3; ++i) ASSERT_EQ(cluster_->RestartServer(i), OkStatus());
  ASSERT_EQ(cluster_->WaitForServers(3, seconds(20)), OkStatus());
  Connect();
  for (int i = 0; i < 120; ++i) EXPECT_EQ(Get("p" + std::to_string(i)), 4u) << i;
}

TEST_F(SsdRestartTest, WhatOthersReplacedOrRemovedMeanwhileNeverComesBack) {
  StartCluster({}, 3, "lease_ms=1000");
  for (int i = 0; i < 120; ++i)
    ASSERT_EQ(Put("o" + std::to_string(i), 1, 20 * kKiB, Durability::kSsd), OkStatus());
  for (int round = 0; round < 2; ++round) {
    cluster_->server(0).Kill();
    ASSERT_EQ(cluster_->WaitForServers(2, seconds(20)), OkStatus());
    Connect();  // a client that has not heard of the new view yet cannot reach the dead server
    for (int i = 0; i < 120; ++i) {
      const std::string key = "o" + std::to_string(i);
      if (i % 3 == 0) {
        const Status removed = client_->Remove(key);
        ASSERT_TRUE(removed.ok() || removed.code() == StatusCode::kNotFound) << removed;
      } else {
        ASSERT_EQ(Put(key, 2u + static_cast<uint64_t>(round), 20 * kKiB, Durability::kSsd),
                  OkStatus());
      }
    }
    ASSERT_EQ(cluster_->RestartServer(0), OkStatus());
    ASSERT_EQ(cluster_->WaitForServers(3, seconds(20)), OkStatus());
    Connect();
    for (int i = 0; i < 120; ++i) {
      const std::optional<uint64_t> found = Get("o" + std::to_string(i));
      ASSERT_TRUE(found);
      const uint64_t newest = i % 3 == 0 ? 0 : 2u + static_cast<uint64_t>(round);
      EXPECT_TRUE(*found == 0 || *found == newest) << i << ": " << *found << " round " << round;
    }
  }
}

TEST_F(SsdRestartTest, ALifeWithoutTheSsdMakesWhatLiesThereOld) {
  StartCluster({});
  for (int i = 0; i < 40; ++i)
    ASSERT_EQ(Put("w" + std::to_string(i), 1, 20 * kKiB, Durability::kSsd), OkStatus());
  for (const char* bytes : {"ssd.capacity_bytes=0", "ssd.capacity_bytes=512MiB"}) {
    cluster_->server(0).Kill();
    ASSERT_EQ(cluster_->RestartServer(0, {"--set", bytes}), OkStatus());
    ASSERT_EQ(cluster_->WaitForServers(1, seconds(10)), OkStatus());
    Connect();
    for (int i = 0; i < 40; ++i) EXPECT_EQ(Get("w" + std::to_string(i)), 0u) << bytes << i;
    const std::string first = "w0";
    ASSERT_EQ(Put(first, 2, 20 * kKiB, Durability::kDram), OkStatus());
    EXPECT_EQ(Get(first), 2u);
    ASSERT_EQ(client_->Remove(first), OkStatus());
  }
}

TEST_F(SsdRestartTest, AReplacedOrRemovedValueNeverComesBackWhateverTheNewOneWasPromised) {
  StartCluster({});
  for (int i = 0; i < 60; ++i)
    ASSERT_EQ(Put("k" + std::to_string(i), 1, 50 * kKiB, Durability::kSsd), OkStatus());
  for (int i = 0; i < 60; ++i) {
    if (i % 2 == 0) {
      ASSERT_EQ(Put("k" + std::to_string(i), 2, 60 * kKiB, Durability::kDram), OkStatus());
    } else {
      ASSERT_EQ(client_->Remove("k" + std::to_string(i)), OkStatus());
    }
  }
  KillAndRestart();
  for (int i = 0; i < 60; ++i) {
    const std::optional<uint64_t> found = Get("k" + std::to_string(i));
    ASSERT_TRUE(found);
    EXPECT_NE(*found, 1u) << i;
    if (i % 2 == 1) {
      EXPECT_EQ(*found, 0u) << i;
    }
  }
}

TEST_F(SsdRestartTest, WhatDramHasNoRoomForIsAHit) {
  StartCluster({});
  for (int i = 0; i < 300; ++i)
    ASSERT_EQ(Put("b" + std::to_string(i), 5, 700 * kKiB, Durability::kSsd), OkStatus());
  for (int i = 0; i < 300; ++i) EXPECT_EQ(Get("b" + std::to_string(i)), 5u) << i;
  // In one batch, too, and ranges of it.
  std::vector<std::string> keys;
  std::vector<std::string> buffers(100, std::string(700 * kKiB, '\0'));
  std::vector<MutableBytes> parts;
  for (int i = 0; i < 100; ++i) {
    keys.push_back("b" + std::to_string(i * 3));
    parts.push_back(std::as_writable_bytes(std::span(buffers[static_cast<size_t>(i)])));
  }
  std::vector<GetItem> items;
  for (size_t i = 0; i < 100; ++i) items.push_back({keys[i], parts[i]});
  const auto results = client_->MultiGet(items);
  for (size_t i = 0; i < 100; ++i) {
    ASSERT_TRUE(results[i].ok()) << results[i].status();
    EXPECT_EQ(VerifyValue(kNs, keys[i], buffers[i]), 5u);
  }
  std::string range(100 * kKiB, '\0');
  MutableBytes into = std::as_writable_bytes(std::span(range));
  ASSERT_EQ(client_->GetRange("b1", 300 * kKiB, into), OkStatus());
  EXPECT_EQ(range, MakeValue(kNs, "b1", 5, 700 * kKiB).substr(300 * kKiB, 100 * kKiB));
}

TEST_F(SsdRestartTest, AnotherSizeOfDramKeepsWhatIsOnTheSsd) {
  StartCluster({});
  for (int i = 0; i < 60; ++i)
    ASSERT_EQ(Put("m" + std::to_string(i), 4, 500 * kKiB, Durability::kSsd), OkStatus());
  for (const char* bytes : {"dram.bytes=32MiB", "dram.bytes=128MiB"}) {
    cluster_->server(0).Kill();
    ASSERT_EQ(cluster_->RestartServer(0, {"--set", bytes}), OkStatus());
    ASSERT_EQ(cluster_->WaitForServers(1, seconds(10)), OkStatus());
    Connect();
    for (int i = 0; i < 60; ++i) EXPECT_EQ(Get("m" + std::to_string(i)), 4u) << bytes << i;
  }
}

TEST_F(SsdRestartTest, AnOrderlyStopKeepsWhatWasOnlyInDram) {
  StartCluster({});
  for (int i = 0; i < 50; ++i)
    ASSERT_EQ(Put("d" + std::to_string(i), 9, 90 * kKiB, Durability::kDram), OkStatus());
  cluster_->server(0).Signal(SIGTERM);
  const Result<int> code = cluster_->server(0).WaitExit(seconds(10));
  ASSERT_TRUE(code.ok()) << code.status();
  EXPECT_EQ(*code, 0);
  ASSERT_EQ(cluster_->RestartServer(0), OkStatus());
  ASSERT_EQ(cluster_->WaitForServers(1, seconds(10)), OkStatus());
  Connect();
  for (int i = 0; i < 50; ++i) EXPECT_EQ(Get("d" + std::to_string(i)), 9u) << i;
}

}  // namespace
}  // namespace ems::testing
