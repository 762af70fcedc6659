// What must hold: servers come, go and come back under their names, and their counters are read by
// process.
#include "bench/elastic/elastic_cluster.h"

#include <gtest/gtest.h>

#include "common/bytes.h"
#include "tests/support/paths.h"

namespace ems::bench {
namespace {

TEST(ElasticClusterTest, ReadsTheForwardCountersOfAServer) {
  const ForwardCounters counters = ForwardCountersOf(
      "# HELP ems_server_forwards_total Keys\n"
      "ems_server_forwards_total{result=\"failed\"} 1\n"
      "ems_server_forwards_total{result=\"hit\"} 1200\n"
      "ems_server_forwards_total{result=\"miss\"} 3\n"
      "ems_server_forwarded_bytes_total_of_others 9\n"
      "ems_server_migrated_bytes_total 500000\n"
      "ems_server_forwarded_bytes_total 1.0e+06");
  EXPECT_EQ(counters, (ForwardCounters{
                          .hits = 1200, .misses = 3, .refused = 0, .failed = 1, .bytes = 1500000}));
  EXPECT_EQ(ForwardCountersOf(""), ForwardCounters());
}

TEST(ElasticClusterTest, CountersOfANewProcessBeginAtZero) {
  const CountersByServer before = {{1, {.hits = 10}}, {2, {.hits = 50}}};
  const CountersByServer after = {{1, {.hits = 13}}, {3, {.hits = 7}}};
  EXPECT_EQ(CountedBetween(before, after).hits, 10u) << "what 2 counted is gone with it";
}

TEST(ElasticClusterTest, ServersComeGoAndComeBack) {
  auto cluster =
      ElasticCluster::Start({.programs = ems::testing::BinDir(), .dram_bytes = 64 * kMiB});
  ASSERT_TRUE(cluster.ok()) << ToString(cluster.status());
  for (const char* name : {"server-1", "server-2"})
    ASSERT_TRUE((*cluster)->StartServer(name).ok()) << name;
  auto counters = (*cluster)->Counters();
  ASSERT_TRUE(counters.ok()) << ToString(counters.status());
  EXPECT_EQ(counters->size(), 2u);
  (*cluster)->KillServer("server-2");
  EXPECT_FALSE((*cluster)->Runs("server-2"));
  ASSERT_TRUE((*cluster)->StartServer("server-2").ok());
  (*cluster)->StopServer("server-1");
  counters = (*cluster)->Counters();
  ASSERT_TRUE(counters.ok()) << ToString(counters.status());
  EXPECT_EQ(counters->size(), 1u);
}

TEST(ElasticClusterTest, SaysThatAProgramIsMissing) {
  EXPECT_EQ(ElasticCluster::Start({.programs = "/nonexistent"}).status().code(),
            StatusCode::kNotFound);
}

}  // namespace
}  // namespace ems::bench
