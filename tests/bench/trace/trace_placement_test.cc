// What must hold: every block is stored once, what the servers hold is what was stored, and the
// figure says how far the fullest is above its share by capacity.
#include "bench/trace/trace_placement.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/cluster.h"

namespace ems::bench {
namespace {

TEST(AboveSharePercentTest, IsOfTheFullestServerByCapacity) {
  EXPECT_NEAR(AboveSharePercent({{"a", 10, 90}, {"b", 10, 110}}), 10, 1e-9);
  EXPECT_NEAR(AboveSharePercent({{"a", 10, 100}, {"b", 30, 300}}), 0, 1e-9);
  EXPECT_NEAR(AboveSharePercent({{"a", 10, 200}, {"b", 30, 200}}), 100, 1e-9);
}

TEST(AboveSharePercentTest, NothingToCompareIsNoNumber) {
  EXPECT_TRUE(std::isnan(AboveSharePercent({})));
  EXPECT_TRUE(std::isnan(AboveSharePercent({{"a", 10, 90}})));
  EXPECT_TRUE(std::isnan(AboveSharePercent({{"a", 10, 0}, {"b", 10, 0}})));
}

TEST(TracePlacementTest, AsksEachServerWhatItHolds) {
  auto cluster =
      testing::Cluster::Start({.servers = 2, .controller_flags = {}, .server_flags = {}});
  ASSERT_TRUE(cluster.ok()) << ToString(cluster.status());
  auto client = (*cluster)->Connect();
  ASSERT_TRUE(client.ok()) << ToString(client.status());
  Trace trace;
  for (uint64_t i = 0; i < 2000; ++i) {
    TraceRequest request;
    request.blocks = {0, i, i + 1};  // most of them are in several requests
    trace.requests.push_back(request);
  }
  const auto servers = MeasurePlacement(trace, 4096, "default", client->get());
  ASSERT_TRUE(servers.ok()) << ToString(servers.status());
  ASSERT_EQ(servers->size(), 2U);
  EXPECT_EQ((*servers)[0].bytes + (*servers)[1].bytes, 2001 * kPlacementValueBytes);
  EXPECT_GT((*servers)[0].capacity_bytes, 0);
  EXPECT_LT(AboveSharePercent(*servers), 15);
}

}  // namespace
}  // namespace ems::bench
