// What must hold: the block is vLLM's, line by line; ratios are those of the figures; a target
// fall of TTFT passes at its bound, and fails below it and where nothing was measured.
#include "bench/serve/serve_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace ems::bench {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

const std::array<std::string, 2> kNames = {"without EMS", "with EMS"};

// 4 requests of 100 tokens that take so long.
ServeFigures Figures(int ttft_ms, uint64_t cached) {
  ServeFigures figures;
  for (int i = 0; i < 4; ++i) {
    ServeOutcome outcome;
    outcome.ttft = milliseconds(ttft_ms);
    outcome.e2e = milliseconds(ttft_ms + 40);
    outcome.itl = {milliseconds(20), milliseconds(20)};
    outcome.prompt_tokens = 100;
    outcome.cached_tokens = cached;
    outcome.completion_tokens = 3;
    figures.Add(outcome);
  }
  figures.elapsed = milliseconds(2000);
  return figures;
}

ServePhase Phase(double reuse, bool alone, int without_ms, int with_ms) {
  ServePhase phase;
  phase.name = alone ? "alone" : "loaded";
  phase.reuse = reuse;
  phase.alone = alone;
  phase.stored_tokens = static_cast<uint64_t>(400 * reuse);
  phase.sides.push_back(Figures(without_ms, 0));
  phase.sides.push_back(Figures(with_ms, static_cast<uint64_t>(100 * reuse)));
  return phase;
}

TEST(ServeReportTest, TheBlockIsVllms) {
  const ServeFigures one[] = {Figures(100, 50)};
  const std::string block = ServingBlock(one, {});
  EXPECT_THAT(block, StartsWith("============ Serving Benchmark Result ============\n"
                                "Successful requests:                     4         \n"));
  for (const char* line : {"Benchmark duration (s):                  2.00      \n",
                           "Total input tokens:                      400       \n",
                           "Total generated tokens:                  12        \n",
                           "Request throughput (req/s):              2.00      \n",
                           "Output token throughput (tok/s):         6.00      \n",
                           "Total Token throughput (tok/s):          206.00    \n",
                           "---------------Time to First Token----------------\n",
                           "Mean TTFT (ms):                          100.00    \n",
                           "-----Time per Output Token (excl. 1st token)------\n",
                           "Mean TPOT (ms):                          20.00     \n",
                           "---------------Inter-token Latency----------------\n",
                           "P99 ITL (ms):                            ",
                           "----------------End-to-end Latency----------------\n",
                           "Mean E2EL (ms):                          140.00    \n",
                           "Prefix hit rate (%):                     50.00     \n"}) {
    EXPECT_THAT(block, HasSubstr(line));
  }
  EXPECT_THAT(block, ::testing::EndsWith(std::string(50, '=') + "\n"));
}

TEST(ServeReportTest, SideBySideHasRatios) {
  const ServePhase phase = Phase(0.5, false, 200, 100);
  const std::string block = ServingBlock(phase.sides, kNames);
  EXPECT_THAT(block, HasSubstr("without EMS     with EMS        ratio\n"));
  EXPECT_THAT(block, HasSubstr("Mean TTFT (ms):                                200.00       100.00"
                               "        0.500\n"));
  EXPECT_THAT(block, HasSubstr("Cached input tokens:                                0          200"
                               "            -\n"));
}

TEST(ServeReportTest, TablesSayWhatWasCachedAndByHowMuchTtftFalls) {
  ServeResults results;
  results.phases.push_back(Phase(0.5, true, 200, 100));
  results.phases.push_back(Phase(0.9, false, 200, 300));
  ServeRound& round = results.rounds.emplace_back();
  round.prompt_tokens = 400;
  round.reusable_tokens = 300;
  round.sides.push_back(Figures(100, 0));
  round.sides.push_back(Figures(40, 60));
  const std::string reuse = ReuseTable(results, kNames);
  EXPECT_THAT(reuse, ::testing::ContainsRegex("alone +4 +50.0 % +200.0 .[0-9.]+-[0-9.]+. +100.0 "
                                              ".[0-9.]+-[0-9.]+. +50.0 % +34.0 %\n"));
  EXPECT_THAT(reuse, ::testing::ContainsRegex("loaded +4 +90.0 % +200.0 .* +300.0 .* +-50.0 %\n"));
  EXPECT_THAT(RoundTable(results, kNames),
              ::testing::ContainsRegex("1 +4 +400 +75.0 % +60.0 % +100.0 .* +40.000 .* +60.0 %\n"));
}

TEST(ServeReportTest, OneSideHasNoFalls) {
  ServeResults results;
  ServePhase& phase = results.phases.emplace_back();
  phase.name = "alone";
  phase.reuse = 0.5;
  phase.sides.push_back(Figures(100, 50));
  const std::array<std::string, 1> name = {"it"};
  EXPECT_THAT(ReuseTable(results, name), Not(HasSubstr("falls")));
  EXPECT_TRUE(std::isnan(TtftFall(phase)));
  EXPECT_FALSE(ServeJson(results, name)["phases"][0].contains("ttft_fall"));
}

// The value of the gate's line, run with these phases.
std::string GatesOf(const ServeResults& results, bool* failed, GateSet gates = GateSet::kAll) {
  Report report("serve", "", gates);
  ::testing::internal::CaptureStdout();
  AddServeGates(results, &report);
  *failed = report.failed();
  return ::testing::internal::GetCapturedStdout();
}

TEST(ServeReportTest, GatesAreTheTargetsOfOneAtATime) {
  bool failed = false;
  ServeResults results;
  results.phases.push_back(Phase(0.5, true, 100, 65));
  results.phases.push_back(Phase(0.5, false, 100, 100));
  results.phases.push_back(Phase(0.9, true, 100, 40));
  results.phases.push_back(Phase(0.25, true, 100, 100));
  EXPECT_EQ(GatesOf(results, &failed),
            "gate failed_requests 0 <= 0 pass\n"
            "gate different_answers 0 <= 0 pass\n"
            "gate stored_tokens_found_at_0.5_reuse 1 >= 1 pass\n"
            "gate stored_tokens_found_at_0.5_reuse_loaded 1 >= 1 pass\n"
            "gate stored_tokens_found_at_0.9_reuse 1 >= 1 pass\n"
            "gate stored_tokens_found_at_0.25_reuse 1 >= 1 pass\n"
            "gate ttft_fall_at_0.5_reuse 0.35 >= 0.34 pass\n"
            "gate ttft_fall_at_0.9_reuse 0.6 >= 0.59 pass\n");
  EXPECT_FALSE(failed);
  results.phases[2] = Phase(0.9, true, 100, 42);
  EXPECT_THAT(GatesOf(results, &failed), HasSubstr("0.58 >= 0.59 fail"));
  EXPECT_TRUE(failed);
  results.phases[2].sides[1] = ServeFigures();
  EXPECT_THAT(GatesOf(results, &failed), HasSubstr("nan >= 0.59 fail"));
  EXPECT_TRUE(failed);
}

TEST(ServeReportTest, ExactGatesFailWhateverTheTimesAre) {
  bool failed = false;
  ServeResults results;
  results.phases.push_back(Phase(0.5, true, 100, 90));
  EXPECT_THAT(GatesOf(results, &failed, GateSet::kExact), Not(HasSubstr("ttft")));
  EXPECT_FALSE(failed);
  results.phases[0].stored_tokens = 250;
  EXPECT_THAT(GatesOf(results, &failed, GateSet::kExact), HasSubstr("0.8 >= 1 fail"));
  EXPECT_TRUE(failed);
  results.phases[0] = Phase(0.5, true, 100, 90);
  results.differences = {"one"};
  EXPECT_THAT(GatesOf(results, &failed, GateSet::kExact),
              HasSubstr("different_answers 1 <= 0 fail"));
  results.differences.clear();
  results.phases[0].sides[1].failed = 1;
  EXPECT_THAT(GatesOf(results, &failed, GateSet::kExact), HasSubstr("failed_requests 1 <= 0 fail"));
  results.phases[0].sides[1] = ServeFigures();
  EXPECT_THAT(GatesOf(results, &failed, GateSet::kExact),
              HasSubstr("found_at_0.5_reuse 0 >= 1 fail"));
}

TEST(ServeReportTest, JsonHasAllFigures) {
  ServeResults results;
  results.phases.push_back(Phase(0.5, true, 200, 100));
  results.differences = {"one"};
  const auto json = ServeJson(results, kNames);
  EXPECT_EQ(json["phases"][0]["ttft_fall"], 0.5);
  EXPECT_EQ(json["phases"][0]["sides"][1]["side"], "with EMS");
  EXPECT_EQ(json["phases"][0]["sides"][1]["ttft"]["avg_ms"], 100);
  EXPECT_EQ(json["different_answers"], 1);
}

}  // namespace
}  // namespace ems::bench
