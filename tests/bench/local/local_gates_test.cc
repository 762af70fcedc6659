// What must hold: every target has its gate; each fails when its figure is missed, and when the
// figure is not there, with the reason.
#include "bench/local/local_gates.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/bench/local/local_trials.h"

namespace ems::bench {
namespace {

using test::GoodResults;
using ::testing::HasSubstr;
constexpr size_t kGateCount = 6 + 3 + 6 + 7;

const LocalGate& Named(const std::vector<LocalGate>& gates, const std::string& name) {
  const auto found = std::find_if(gates.begin(), gates.end(),
                                  [&](const LocalGate& gate) { return gate.result.name == name; });
  EXPECT_NE(found, gates.end()) << name;
  return found == gates.end() ? gates.front() : *found;
}

void Drop(SideResults* results, const std::string& subject) {
  std::erase_if(results->trials,
                [&](const TrialResult& trial) { return trial.subject == subject; });
}

TEST(LocalGatesTest, AGoodRunPassesEveryGate) {
  const std::vector<LocalGate> gates = JudgeLocal(GoodResults());
  EXPECT_EQ(gates.size(), kGateCount);
  for (const LocalGate& gate : gates) {
    EXPECT_TRUE(gate.result.passed()) << gate.result.Line();
    EXPECT_EQ(gate.why, "");
  }
}

TEST(LocalGatesTest, RatiosAreWithTheBetterPeerOfEachRound) {
  const std::vector<LocalGate> gates = JudgeLocal(GoodResults());
  EXPECT_DOUBLE_EQ(Named(gates, "get_1MiB_vs_peer").result.value, 8.5 / 4);
  EXPECT_DOUBLE_EQ(Named(gates, "get_64KiB_p50_vs_peer").result.value, 1.5 / 15);
  EXPECT_DOUBLE_EQ(Named(gates, "get_1MiB_cpu_vs_peer").result.value, 0.1 / 0.5);
  EXPECT_DOUBLE_EQ(Named(gates, "get_1MiB_2_threads_vs_peer").result.value, 19.0 / 8);
  EXPECT_DOUBLE_EQ(Named(gates, "put_1MiB_vs_peer").result.value, 2);
}

TEST(LocalGatesTest, TheFasterWayToCopyIsTheLimit) {
  SideResults results = GoodResults();
  EXPECT_DOUBLE_EQ(Named(JudgeLocal(results), "get_1MiB_vs_copy").result.value, 0.95);
  for (TrialResult& trial : results.trials)
    if (trial.subject == "memcpy")
      for (RoundFigures& round : trial.rounds) round.gb_per_second *= 2;
  const LocalGate gate = Named(JudgeLocal(results), "get_1MiB_vs_copy");
  EXPECT_DOUBLE_EQ(gate.result.value, 9.5 / 14);
  EXPECT_FALSE(gate.result.passed());
  Drop(&results, "EMS's copy");
  EXPECT_THAT(Named(JudgeLocal(results), "get_1MiB_vs_copy").why, HasSubstr("EMS's copy: Get"));
}

TEST(LocalGatesTest, OneSidedShareIsTheLeastOfWhatReads) {
  SideResults results = GoodResults();
  EXPECT_EQ(OneSidedShareMin(results), 1);
  results.trials[2].one_sided_share = 0.5;
  EXPECT_EQ(results.trials[2].subject, "EMS");
  EXPECT_EQ(OneSidedShareMin(results), 0.5);
  EXPECT_TRUE(std::isnan(OneSidedShareMin(SideResults())));
}

TEST(LocalGatesTest, NothingMeasuredFailsEveryGateWithAReason) {
  const std::vector<LocalGate> gates = JudgeLocal(SideResults());
  EXPECT_EQ(gates.size(), kGateCount);
  for (const LocalGate& gate : gates) {
    EXPECT_FALSE(gate.result.passed()) << gate.result.Line();
    EXPECT_NE(gate.why, "") << gate.result.name;
  }
}

TEST(LocalGatesTest, OneAbsentPeerFailsItsGatesAloneAndSaysWhy) {
  SideResults results = GoodResults();
  Drop(&results, "redis unix");
  results.missing.push_back("redis unix: redis-server is not installed");
  size_t failed = 0;
  for (const LocalGate& gate : JudgeLocal(results)) {
    const bool of_peers = gate.result.name.find("peer") != std::string::npos;
    EXPECT_EQ(gate.result.passed(), !of_peers) << gate.result.Line();
    if (of_peers) {
      EXPECT_THAT(gate.why, HasSubstr("redis-server is not installed"));
    }
    failed += gate.result.passed() ? 0 : 1;
  }
  EXPECT_EQ(failed, 7U);
}

TEST(LocalGatesTest, EachMissedFigureFailsItsGate) {
  SideResults slow = GoodResults();
  for (TrialResult& trial : slow.trials) {
    if (trial.subject != "EMS") continue;
    for (RoundFigures& round : trial.rounds) {
      round.gb_per_second *= 0.1;
      round.p50_us *= 100;
      round.client_cpu_per_gb *= 100;
    }
  }
  slow.storms.front().server_cores = 0.5;
  for (const LocalGate& gate : JudgeLocal(slow)) {
    EXPECT_FALSE(gate.result.passed()) << gate.result.Line();
    EXPECT_EQ(gate.why, "");
  }
}

}  // namespace
}  // namespace ems::bench
