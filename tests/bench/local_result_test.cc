// What must hold: medians are of rounds, and lanes are found by all that sets them apart.
#include "bench/local_result.h"

#include <gtest/gtest.h>

namespace ems::bench {
namespace {

LaneResult Lane(const char* contender, LocalOp op, uint64_t bytes, uint32_t threads) {
  LaneResult lane;
  lane.contender = contender;
  lane.op = op;
  lane.value_bytes = bytes;
  lane.threads = threads;
  return lane;
}

TEST(LocalResultTest, MediansAreOfRounds) {
  LaneResult lane;
  for (const double gbps : {3.0, 1.0, 2.0}) {
    lane.rounds.push_back({.gb_per_second = gbps,
                           .ops_per_second = 10 * gbps,
                           .p50_us = 5,
                           .client_cpu_per_gb = 0.5,
                           .server_cpu_per_gb = 0.25});
  }
  EXPECT_EQ(lane.MedianOf(Gbps), 2);
  EXPECT_EQ(lane.MedianOf(Ops), 20);
  EXPECT_EQ(lane.MedianOf(P50), 5);
  EXPECT_EQ(lane.MedianOf(Cpu), 0.75);
  EXPECT_EQ(lane.All(Gbps), (std::vector<double>{3, 1, 2}));
  EXPECT_EQ(LaneResult().MedianOf(Gbps), 0);
}

TEST(LocalResultTest, FindsByContenderOperationSizeAndThreads) {
  LocalResults results;
  results.lanes.push_back(Lane("EMS", LocalOp::kGet, 4096, 1));
  results.lanes.push_back(Lane("EMS", LocalOp::kGet, 4096, 2));
  results.lanes.push_back(Lane("memcpy", LocalOp::kGet, 65536, 1));
  EXPECT_EQ(results.Find("EMS", LocalOp::kGet, 4096, 2), &results.lanes[1]);
  EXPECT_EQ(results.Find("EMS", LocalOp::kPut, 4096, 2), nullptr);
  EXPECT_EQ(results.Find("redis unix", LocalOp::kGet, 4096, 1), nullptr);
  EXPECT_EQ(results.Sizes(), (std::vector<uint64_t>{4096, 65536}));
  EXPECT_EQ(results.Contenders(), (std::vector<std::string>{"EMS", "memcpy"}));
}

}  // namespace
}  // namespace ems::bench
