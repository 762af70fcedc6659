// What must hold: all keys of all servers come, however small the pages are and whatever else is
// put meanwhile; a server that has gone is named, and the rest is there.
#include "mp_sdk/key_scan.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <set>

#include "common/thread_pool.h"
#include "mp_sdk/client.h"
#include "tests/support/cluster.h"

namespace ems {
namespace {

using testing::Cluster;

class KeyScanTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto started = Cluster::Start({.servers = 3, .controller_flags = {}, .server_flags = {}});
    ASSERT_TRUE(started.ok()) << ToString(started.status());
    cluster_ = *std::move(started);
    auto client = cluster_->Connect();
    ASSERT_TRUE(client.ok()) << ToString(client.status());
    client_ = *std::move(client);
    for (int i = 0; i < 300; ++i)
      ASSERT_TRUE(client_->Put(fmt::format("stays/{}", i), std::string_view("value")).ok());
  }

  std::unique_ptr<Cluster> cluster_;
  std::unique_ptr<Client> client_;
};

TEST_F(KeyScanTest, KeysThatStayComeFromAllServersWhileOthersArePut) {
  StopFlag stop;
  Thread other("noise", [&] {
    for (int i = 0; !stop.IsSet() && i < 100'000; ++i)
      (void)client_->Put(fmt::format("noise/{}", i), std::string_view("value"));
  });
  for (const uint32_t keys_max : {5U, 1024U}) {
    Result<KeyScan> scan = KeyScan::Begin(
        client_.get(),
        {.prefix = "stays/", .keys_max = keys_max, .timeout = std::chrono::seconds(10)});
    ASSERT_TRUE(scan.ok());
    std::set<std::string> seen;
    while (!scan->done()) {
      for (const KeyInfo& one : scan->Next()) {
        EXPECT_EQ(one.bytes, 5U);
        EXPECT_EQ(one.tier, Tier::kDram);
        EXPECT_TRUE(one.age && one.idle);
        seen.insert(one.key);
      }
    }
    EXPECT_EQ(seen.size(), 300U) << keys_max;
    for (const KeyScan::Failure& failure : scan->failures())
      ADD_FAILURE() << failure.server << ": " << failure.status;
    EXPECT_FALSE(scan->view_changed());
  }
  stop.Set();
  other.Join();
}

TEST_F(KeyScanTest, AServerThatHasGoneIsNamed) {
  Result<KeyScan> scan = KeyScan::Begin(client_.get(), {.timeout = std::chrono::seconds(2)});
  ASSERT_TRUE(scan.ok());
  cluster_->server(2).Kill();
  std::set<std::string> seen;
  while (!scan->done())
    for (const KeyInfo& one : scan->Next()) seen.insert(one.key);
  ASSERT_EQ(scan->failures().size(), 1U);
  EXPECT_EQ(scan->failures()[0].server, "server-2");
  EXPECT_FALSE(scan->failures()[0].status.ok());
  EXPECT_GT(seen.size(), 100U);
  EXPECT_LT(seen.size(), 300U);
}

TEST_F(KeyScanTest, APrefixOrANumberOfKeysOutOfRangeIsRefused) {
  const std::string long_prefix(513, 'p');
  EXPECT_EQ(KeyScan::Begin(client_.get(), {.prefix = long_prefix}).status().code(),
            StatusCode::kInvalidArgument);
  for (const uint32_t keys_max : {0U, 1025U})
    EXPECT_EQ(KeyScan::Begin(client_.get(), {.keys_max = keys_max}).status().code(),
              StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace ems
