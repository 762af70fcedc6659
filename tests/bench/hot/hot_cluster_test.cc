// What must hold: clients reach the servers through their limits alone.
#include "bench/hot/hot_cluster.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/support/paths.h"

namespace ems::bench {
namespace {

TEST(HotClusterTest, WhatIsReadHasPassedTheServersLimit) {
  const auto cluster = HotCluster::Start({.programs = ems::testing::BinDir(),
                                          .servers = 2,
                                          .nic_bytes_per_s = 1e9,
                                          .dram_bytes = 64 * kMiB});
  ASSERT_TRUE(cluster.ok()) << ToString(cluster.status());
  const auto client = (*cluster)->Connect();
  ASSERT_TRUE(client.ok()) << ToString(client.status());
  const std::string value(3 * kMiB, 'x');
  ASSERT_TRUE((*client)->Put("key", std::string_view(value)).ok());
  uint64_t before = 0, after = 0;
  for (const uint64_t sent : (*cluster)->SentBytes()) before += sent;
  ASSERT_EQ(*(*client)->Get("key"), value);
  for (const uint64_t sent : (*cluster)->SentBytes()) after += sent;
  EXPECT_GE(after - before, value.size());
}

}  // namespace
}  // namespace ems::bench
