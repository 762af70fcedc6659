// What must hold: whatever breaks, alone or together with others, each read is explained by the
// calls that there were, calls end in time, and the cluster heals by itself. The seed is printed;
// ems-chaos repeats it.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "tests/fault/chaos/chaos_run.h"
#include "tests/support/long_run.h"

namespace ems::testing {
namespace {

using std::chrono::seconds;

TEST(ChaosTest, EveryReadIsExplainedAndTheClusterHeals) {
  ChaosOptions options;
  options.seed = ChosenSeed();
  options.time = seconds(NumberOfVariable("EMS_CHAOS_SECONDS", 60));
  const Result<ChaosReport> report = RunChaos(options);
  ASSERT_TRUE(report.ok()) << report.status();
  std::printf("%s\n", report->ToText().c_str());
  for (const std::string& text : report->broken) ADD_FAILURE() << text;
  if (!report->broken.empty()) std::printf("%s", report->logs.c_str());
  // What never happens shows nothing.
  EXPECT_GT(std::accumulate(report->faults.begin(), report->faults.end(), uint64_t{0}), 0u);
  EXPECT_GT(report->counts.acknowledged, 0u);
  EXPECT_GT(report->counts.hits, 0u);
  EXPECT_GT(report->one_sided, 0u);
}

std::vector<std::string> ScheduleOf(uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::string> texts;
  for (int round = 0; round < 50; ++round)
    for (const Fault& fault : MakeRound({}, seconds(8), seconds(2), &random))
      texts.push_back(fault.ToText());
  return texts;
}

TEST(ChaosScheduleTest, TheSeedDecidesIt) {
  EXPECT_EQ(ScheduleOf(7), ScheduleOf(7));
  EXPECT_NE(ScheduleOf(7), ScheduleOf(8));
}

TEST(ChaosScheduleTest, EveryKindComesAndEndsWithinItsRound) {
  std::mt19937_64 random(1);
  std::vector<int> kinds(kFaultKinds);
  for (int round = 0; round < 100; ++round) {
    for (const Fault& fault : MakeRound({}, seconds(8), seconds(2), &random)) {
      ++kinds.at(static_cast<size_t>(fault.kind));
      EXPECT_LE(fault.begin + fault.length, seconds(8)) << fault.ToText();
      EXPECT_GT(fault.length.count(), 0) << fault.ToText();
    }
  }
  EXPECT_EQ(std::count(kinds.begin(), kinds.end(), 0), 0);
}

TEST(ChaosScheduleTest, WhatTheMachineCannotDoIsLeftOut) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 100; ++round) {
    for (const Fault& fault :
         MakeRound({.hung_disk = false, .full_disk = false}, seconds(8), seconds(2), &random)) {
      EXPECT_NE(fault.kind, FaultKind::kHungDisk);
      EXPECT_NE(fault.kind, FaultKind::kFullDisk);
    }
  }
}

}  // namespace
}  // namespace ems::testing
