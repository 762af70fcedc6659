// What must hold when the SSD's file system is full: no wrong byte, DRAM goes on, Puts keep
// their durability, and the tier writes again soon after there is room, without a restart.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "tests/support/cluster.h"
#include "tests/support/eventually.h"
#include "tests/support/small_disk.h"
#include "tests/support/verified_load.h"

namespace ems::testing {
namespace {

using std::chrono::seconds;

class SsdFullDiskTest : public ::testing::Test {
 protected:
  std::string Tier(const std::string& field) const {
    const Result<std::string> stats = client_->ServerStats("server-0", seconds(5));
    if (!stats.ok()) return "";
    const auto json = nlohmann::json::parse(*stats);
    const auto& value = json["ssd"][field];
    return value.is_string() ? value.get<std::string>() : value.dump();
  }
  bool WaitForState(const std::string& state, Duration patience) const {
    return Eventually([&] { return Tier("state") == state; }, patience);
  }
  Status PutDurable(const std::string& key) const {
    PutOptions options;
    options.durability = Durability::kSsd;
    options.overwrite = true;
    options.timeout = seconds(2);
    const std::string value(100 * kKiB, 'd');
    return client_->Put(key, std::string_view(value), options);
  }

  const SmallDisk disk_{256 * kMiB};
  std::unique_ptr<Cluster> cluster_;
  std::unique_ptr<Client> client_;
};

TEST_F(SsdFullDiskTest, GoesOnInDramAndWritesAgainWhenThereIsRoom) {
  if (!disk_.mounted()) GTEST_SKIP() << "a file system can be mounted by root alone";
  auto started = Cluster::Start(
      {.servers = 1,
       .controller_flags = {},
       .server_flags = {"--set", "dram.bytes=64MiB", "--set", "ssd.capacity_bytes=1GiB", "--set",
                        "ssd.path=" + disk_.path() + "/ssd", "--set", "ssd.region_bytes=8MiB"}});
  ASSERT_TRUE(started.ok()) << started.status();
  cluster_ = *std::move(started);
  auto client = cluster_->Connect(TransportChoice::kAuto, seconds(2));
  ASSERT_TRUE(client.ok()) << client.status();
  client_ = *std::move(client);
  // More than the disk: regions take what there is but the index's part, and are used again.
  VerifiedLoad load(client_.get(), {.threads = 2, .keys = 3000, .value_bytes_max = 256 * kKiB});
  EXPECT_TRUE(Eventually([&] { return Tier("reclaimed_objects") != "0"; }, seconds(60)))
      << "it has not filled its disk";
  EXPECT_EQ(Tier("state"), "ok") << Tier("reason");
  ASSERT_EQ(PutDurable("durable-1"), OkStatus());

  // The index gives some of its own room back when it is opened again, and others take that, too.
  (void)load.Take();
  int durable = 1;
  const auto is_degraded = [&] {
    disk_.Fill();
    if (PutDurable("durable-" + std::to_string(durable + 1)).ok()) ++durable;
    return Tier("state") == "degraded";
  };
  EXPECT_TRUE(Eventually(is_degraded, seconds(100))) << Tier("state");
  // A Put that replaces what lies on the SSD is told to come back until its deadline: no restart
  // may bring the old value back.
  ASSERT_TRUE(load.WaitForCalls(30, seconds(30)));
  const LoadCounts full = load.Take();
  EXPECT_TRUE(full.right()) << full.ToText();
  EXPECT_GT(full.hits, 0u);
  EXPECT_EQ(client_->Put("new", std::string_view("value")), OkStatus()) << "in DRAM alone";

  disk_.Free();
  ASSERT_TRUE(WaitForState("ok", seconds(30))) << Tier("reason");
  EXPECT_EQ(PutDurable("after"), OkStatus());
  (void)load.Take();
  ASSERT_TRUE(load.WaitForCalls(500, seconds(30)));
  load.Stop();
  const LoadCounts healed = load.Take();
  EXPECT_TRUE(healed.right()) << healed.ToText();
  EXPECT_TRUE(healed.errors.empty()) << healed.ToText();
  // What was acknowledged meanwhile is there, unless its region has been used again.
  EXPECT_TRUE(client_->Exists("after").value_or(false));
  RecordProperty("durable_puts_acknowledged", durable);
}

}  // namespace
}  // namespace ems::testing
