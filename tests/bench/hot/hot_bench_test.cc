// What must hold: both sides read right bytes no faster than the servers' networks allow, and with
// copies more than one server sends.
#include "bench/hot/hot_bench.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/paths.h"

namespace ems::bench {
namespace {

TEST(HotBenchTest, WithCopiesMoreThanOneServerSends) {
  HotSettings settings;
  settings.servers = 2;
  settings.copies = 1;
  settings.readers = 2;
  settings.nic_bytes_per_s = 20e6;
  settings.seconds = 2;
  settings.programs = ems::testing::BinDir();
  const auto result = RunHotBench(settings);
  ASSERT_TRUE(result.ok()) << ToString(result.status());
  for (const HotSide* side : {&result->off, &result->on}) {
    EXPECT_GT(side->reads, 0U);
    EXPECT_EQ(side->wrong_bytes, 0U);
  }
  EXPECT_EQ(result->off.copy_reads, 0U);
  EXPECT_GT(result->on.copy_reads, 0U);
  const auto senders =
      std::ranges::count_if(result->on.server_gbps, [](double gbps) { return gbps > 0.001; });
  EXPECT_EQ(senders, 2);
}

}  // namespace
}  // namespace ems::bench
