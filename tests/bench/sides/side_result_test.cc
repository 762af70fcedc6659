// What must hold: medians are of rounds, and trials are found by all that sets them apart.
#include "bench/sides/side_result.h"

#include <gtest/gtest.h>

namespace ems::bench {
namespace {

TrialResult Trial(const char* subject, SideOp op, uint64_t bytes, uint32_t threads) {
  TrialResult trial;
  trial.subject = subject;
  trial.op = op;
  trial.value_bytes = bytes;
  trial.threads = threads;
  return trial;
}

TEST(SideResultTest, MediansAreOfRounds) {
  TrialResult trial;
  for (const double gbps : {3.0, 1.0, 2.0}) {
    trial.rounds.push_back({.gb_per_second = gbps,
                            .ops_per_second = 10 * gbps,
                            .p50_us = 5,
                            .client_cpu_per_gb = 0.5,
                            .server_cpu_per_gb = 0.25});
  }
  EXPECT_EQ(trial.MedianOf(Gbps), 2);
  EXPECT_EQ(trial.MedianOf(Ops), 20);
  EXPECT_EQ(trial.MedianOf(P50), 5);
  EXPECT_EQ(trial.MedianOf(Cpu), 0.75);
  EXPECT_EQ(trial.All(Gbps), (std::vector<double>{3, 1, 2}));
  EXPECT_EQ(TrialResult().MedianOf(Gbps), 0);
}

TEST(SideResultTest, FindsBySubjectOperationSizeAndThreads) {
  SideResults results;
  results.trials.push_back(Trial("EMS", SideOp::kGet, 4096, 1));
  results.trials.push_back(Trial("EMS", SideOp::kGet, 4096, 2));
  results.trials.push_back(Trial("memcpy", SideOp::kGet, 65536, 1));
  EXPECT_EQ(results.Find("EMS", SideOp::kGet, 4096, 2), &results.trials[1]);
  EXPECT_EQ(results.Find("EMS", SideOp::kPut, 4096, 2), nullptr);
  EXPECT_EQ(results.Find("redis unix", SideOp::kGet, 4096, 1), nullptr);
  EXPECT_EQ(results.Sizes(), (std::vector<uint64_t>{4096, 65536}));
  EXPECT_EQ(results.Subjects(), (std::vector<std::string>{"EMS", "memcpy"}));
}

}  // namespace
}  // namespace ems::bench
