// What must hold: words of the configuration are taken as they are meant or refused with the word;
// sizes are whole huge pages.
#include "mp_server/server_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/config.h"
#include "proto/config.pb.h"

namespace ems::server {
namespace {

using ::testing::HasSubstr;

TEST(ServerOptionsTest, UsersAreNumbersBetweenBlanks) {
  EXPECT_EQ(*ParseUids(" 0  1000\t7 "), (std::vector<uid_t>{0, 1000, 7}));
  EXPECT_TRUE(ParseUids("")->empty());
  for (const char* wrong : {"root", "1000,7", "-1", "12x"}) {
    const auto parsed = ParseUids(wrong);
    ASSERT_EQ(parsed.status().code(), StatusCode::kInvalidArgument) << wrong;
    EXPECT_NE(Message(parsed.status()).find(wrong), std::string_view::npos);
  }
}

TEST(ServerOptionsTest, WhatDoesNotGoTogetherIsSaid) {
  const auto error_of = [](const std::vector<std::string>& more) {
    config::ServerConfig config;
    EXPECT_EQ(config::LoadText("name: a\ndata_dir: /d\n", "s.yaml", more, &config), OkStatus());
    return std::string(Message(CheckConfig(config)));
  };
  EXPECT_EQ(error_of({}), "");
  EXPECT_EQ(error_of({"listen=0.0.0.0:1", "advertise=a:1"}), "");
  EXPECT_THAT(error_of({"listen=0.0.0.0:1"}), HasSubstr("set advertise"));
  EXPECT_THAT(error_of({"listen=[::]:1"}), HasSubstr("set advertise"));
  EXPECT_THAT(error_of({"dram.high_watermark=0.5"}), HasSubstr("dram.low_watermark 0.96 is above"));
  EXPECT_THAT(error_of({"kv_events.replay_listen=127.0.0.1:1"}),
              HasSubstr("kv_events.listen is empty"));
  EXPECT_EQ(error_of({"kv_events.listen=127.0.0.1:2", "kv_events.replay_listen=127.0.0.1:1"}), "");
  EXPECT_THAT(error_of({"shm.uids=root"}), HasSubstr("shm.uids: \"root\" is not"));
}

TEST(ServerOptionsTest, WhatThisMachineHasNotIsSaid) {
  config::ServerConfig config;
  config.set_data_dir("/tmp");
  config.mutable_dram()->set_bytes(64 * kMiB);
  EXPECT_EQ(CheckMachine(config), std::vector<Status>());
  config.mutable_dram()->set_bytes(uint64_t{1} << 60);
  config.mutable_ssd()->set_path("/tmp/ems-never/made");
  EXPECT_EQ(CheckMachine(config).size(), 1U);  // without a capacity there is no SSD tier
  config.mutable_ssd()->set_capacity_bytes(uint64_t{1} << 60);
  const std::vector<Status> problems = CheckMachine(config);
  ASSERT_EQ(problems.size(), 3U);
  EXPECT_THAT(std::string(Message(problems[0])), HasSubstr("\"dram.bytes\""));
  EXPECT_THAT(std::string(Message(problems[1])), HasSubstr("\"ssd.path\""));
  EXPECT_THAT(std::string(Message(problems[2])), HasSubstr("\"ssd.capacity_bytes\""));
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

TEST(ServerOptionsTest, APoolIsSpreadOverNodesWhereThereAreSeveral) {
  config::DramConfig dram;
  dram.set_bytes(64 * kMiB);
  dram.set_huge_pages("off");
  dram.set_numa("none");
  EXPECT_TRUE(ChooseNumaNodes(dram).empty());
  dram.set_numa("interleave");
  EXPECT_NE(ChooseNumaNodes(dram).size(), 1U) << "one node: nothing is asked of the kernel";
  const auto policy_of = [](const SegmentPool::Options& options) {
    const auto segment = options.create(2 * kMiB, options.huge_pages);
    EXPECT_TRUE(segment.ok()) << segment.status();
    constexpr unsigned long kAddress = 2;  // MPOL_F_ADDR, in linux/mempolicy.h
    int policy = -1;
    EXPECT_EQ(::syscall(SYS_get_mempolicy, &policy, nullptr, 0, segment->bytes().data(), kAddress),
              0);
    return policy;
  };
  constexpr int kDefault = 0, kInterleave = 3;  // MPOL_*
  EXPECT_EQ(policy_of(PoolOptions(dram, {0})), kInterleave);
  EXPECT_EQ(policy_of(PoolOptions(dram)), kDefault);
}

TEST(ServerOptionsTest, TheSsdTierLiesInTheDataDirectoryUnlessSaid) {
  config::ServerConfig config;
  config.set_data_dir("/d");
  config.mutable_dram()->set_bytes(kGiB);
  EXPECT_EQ(TierOptions(config).folder, "/d/ssd");
  EXPECT_EQ(TierOptions(config).dirty_bytes_max, kGiB / 10);
  EXPECT_EQ(TierOptions(config).io, ssd::IoKind::kAuto);
  EXPECT_GE(TierOptions(config).index_memory_bytes, 64 * kMiB) << "of what the machine has";
  config.mutable_ssd()->set_path("/fast");
  config.mutable_ssd()->set_dirty_bytes_max(5);
  config.mutable_ssd()->set_index_memory_bytes(7);
  config.mutable_ssd()->set_overwrite_quiet_ms(9);
  config.mutable_ssd()->set_io("threads");
  EXPECT_EQ(TierOptions(config).folder, "/fast");
  EXPECT_EQ(TierOptions(config).dirty_bytes_max, 5U);
  EXPECT_EQ(TierOptions(config).index_memory_bytes, 7U);
  EXPECT_EQ(TierOptions(config).overwrite_quiet, std::chrono::milliseconds(9));
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
