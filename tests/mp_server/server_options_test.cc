// What must hold: words of the configuration are taken as they are meant or refused with the word;
// sizes are whole huge pages.
#include "mp_server/server_options.h"

#include <gtest/gtest.h>

#include "proto/config.pb.h"

namespace ems::server {
namespace {

TEST(ServerOptionsTest, UsersAreNumbersBetweenBlanks) {
  EXPECT_EQ(*ParseUids(" 0  1000\t7 "), (std::vector<uid_t>{0, 1000, 7}));
  EXPECT_TRUE(ParseUids("")->empty());
  for (const char* wrong : {"root", "1000,7", "-1", "12x"}) {
    const auto parsed = ParseUids(wrong);
    ASSERT_EQ(parsed.status().code(), StatusCode::kInvalidArgument) << wrong;
    EXPECT_NE(Message(parsed.status()).find(wrong), std::string_view::npos);
  }
}

TEST(ServerOptionsTest, ModesAreOctal) {
  EXPECT_EQ(*ParseMode("660"), 0660U);
  EXPECT_EQ(*ParseMode("0777"), 0777U);
  for (const char* wrong : {"", "888", "1777", "rw", "66 "})
    EXPECT_EQ(ParseMode(wrong).status().code(), StatusCode::kInvalidArgument) << wrong;
}

TEST(ServerOptionsTest, SegmentsAreWholeHugePagesAndNotMoreThanThePool) {
  config::DramConfig dram;
  dram.set_bytes(64 * kMiB + 5);
  dram.set_huge_pages("off");
  dram.set_segment_bytes(3 * kMiB);
  const SegmentPool::Options options = PoolOptions(dram);
  EXPECT_EQ(options.bytes, 64 * kMiB);
  EXPECT_EQ(options.segment_bytes, 2 * kMiB);
  EXPECT_EQ(options.huge_pages, HugePages::kOff);
  dram.set_segment_bytes(kGiB);
  EXPECT_EQ(PoolOptions(dram).segment_bytes, 64 * kMiB);
  dram.set_segment_bytes(0);
  EXPECT_EQ(PoolOptions(dram).segment_bytes, SegmentPool::DefaultSegmentBytes(64 * kMiB));
}

TEST(ServerOptionsTest, TheSsdTierLiesInTheDataDirectoryUnlessSaid) {
  config::ServerConfig config;
  config.set_data_dir("/d");
  config.mutable_dram()->set_bytes(kGiB);
  EXPECT_EQ(TierOptions(config).folder, "/d/ssd");
  EXPECT_EQ(TierOptions(config).dirty_bytes_max, kGiB / 10);
  EXPECT_EQ(TierOptions(config).io, ssd::IoKind::kAuto);
  config.mutable_ssd()->set_path("/fast");
  config.mutable_ssd()->set_dirty_bytes_max(5);
  config.mutable_ssd()->set_io("threads");
  EXPECT_EQ(TierOptions(config).folder, "/fast");
  EXPECT_EQ(TierOptions(config).dirty_bytes_max, 5U);
  EXPECT_EQ(TierOptions(config).io, ssd::IoKind::kThreads);
}

TEST(ServerOptionsTest, ConnectionsAreAtMostWhatTheConfigurationAllows) {
  config::ServerConfig config;
  config.mutable_dram()->set_bytes(64 * kMiB);
  config.mutable_network()->set_connections_max(3);
  config.set_unix_mode("600");
  const fabric::RpcServerOptions options = RpcOptions(config, 0);
  EXPECT_EQ(options.connections_max, 3U);
  EXPECT_EQ(options.unix_mode, 0600U);
}

}  // namespace
}  // namespace ems::server
