// What must hold: the ring's receiver is a process that takes every message, and what is measured
// of a pace is compared with that pace.
#include "bench/fabric/fabric_bench.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>

namespace ems::bench {
namespace {

using std::chrono::milliseconds;

TEST(FabricBenchTest, MessagesOfAllSizesReachTheOtherProcess) {
  auto bench = RingBench::Start({.entries = 4, .entry_bytes = 64 * kKiB});
  ASSERT_TRUE(bench.ok()) << bench.status();
  for (const uint64_t bytes : {uint64_t{1}, uint64_t{70'000}, RingBench::kBytesMax}) {
    const auto result = (*bench)->Run(bytes, milliseconds(10));
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->bytes, bytes);
    EXPECT_GE(result->send.count(), 5U) << "one a round at least";
    EXPECT_GT(result->ratio, 0);
  }
  const auto probes = (*bench)->RunProbes(3);
  ASSERT_TRUE(probes.ok()) << probes.status();
  EXPECT_EQ(probes->count(), 3U);
}

TEST(FabricBenchTest, CasesHaveNamesOfTheirOwnAndRoutes) {
  const auto topology = fabric::EmulatedTopology::Create(fabric::EmulatedTopology::kSmall, {});
  std::set<std::string> names;
  for (const PaceCase& one : AllPaceCases()) {
    EXPECT_TRUE(names.insert(one.name).second) << one.name;
    EXPECT_TRUE(topology->Route(one.plane, one.initiator, one.target, one.access).ok()) << one.name;
  }
}

TEST(FabricBenchTest, APaceIsNotExceeded) {
  const auto topology = fabric::EmulatedTopology::Create(fabric::EmulatedTopology::kSmall,
                                                         *fabric::EmulatedLinkModel::Create(1000));
  const auto result = MeasurePace(*topology, AllPaceCases().front(), milliseconds(20));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_DOUBLE_EQ(result->model_gb_per_s, 0.147);
  EXPECT_LE(result->gb_per_s, 0.148);
  EXPECT_GE(result->latency, result->model_latency * 99 / 100);
  EXPECT_GE(result->copies, 3U);
}

TEST(FabricBenchTest, DeviationsGoBothWays) {
  PaceResult result;
  EXPECT_TRUE(std::isnan(result.bandwidth_deviation_percent())) << "nothing was measured";
  result = {.model_gb_per_s = 2,
            .gb_per_s = 1.9,
            .model_latency = Duration(100),
            .latency = Duration(110)};
  EXPECT_NEAR(result.bandwidth_deviation_percent(), 5, 1e-9);
  EXPECT_NEAR(result.latency_deviation_percent(), 10, 1e-9);
}

}  // namespace
}  // namespace ems::bench
