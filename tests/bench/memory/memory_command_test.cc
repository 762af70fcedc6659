// What must hold: the memory bench needs no cluster, measures every scenario, writes what it
// measured, and refuses settings that make no sense.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "bench/harness/commands.h"
#include "bench/harness/report.h"
#include "tests/bench/harness/run_command.h"
#include "tests/support/temp_path.h"

namespace ems::bench {
namespace {

using ::testing::HasSubstr;

CommandOutcome RunCommand(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "memory");
  return RunBench(AddMemoryCommand, std::move(arguments));
}

TEST(MemoryCommandTest, QuickRunMeasuresEveryScenario) {
  const ::ems::testing::TempPath json_file("memory.json");
  const std::string& path = json_file.path();
  const CommandOutcome outcome =
      RunCommand({"--quick", "--pool-bytes", "256MiB", "--huge-pages", "off", "--json", path});
  ASSERT_EQ(outcome.code, kExitOk) << outcome.text << outcome.errors;
  std::ifstream file(path);
  const auto json = nlohmann::json::parse(file, nullptr, false);
  ASSERT_TRUE(json.is_object());
  ASSERT_EQ(json["results"].size(), 4U);
  for (const auto& result : json["results"]) {
    EXPECT_THAT(outcome.text, HasSubstr(result["scenario"].get<std::string>()));
    EXPECT_GT(result["efficiency"]["samples"], 0);
    EXPECT_GT(result["efficiency"]["min"], 0.5);
    EXPECT_GT(result["reserve"]["p50_us"], 0);
    EXPECT_EQ(result["refused"], 0);
  }
  EXPECT_EQ(json["tenants"]["files_in_both"], 0);
  EXPECT_GT(json["events"]["ratio"], 0);
  EXPECT_THAT(outcome.text, HasSubstr("events on "));
  EXPECT_GT(json["lookups"]["ns"], 0);
  EXPECT_EQ(json["size"]["segments"], 1009);
  EXPECT_GT(json["size"]["round_ms"], 0);
  EXPECT_GT(json["hazards"]["p50_ratio"], 0);
}

TEST(MemoryCommandTest, GatesPrintTheirLines) {
  const CommandOutcome outcome =
      RunCommand({"--quick", "--gate", "--only", "uniform_147KB", "--pool-bytes", "64MiB"});
  EXPECT_THAT(outcome.text, HasSubstr("gate uniform_147KB_efficiency_min "));
  EXPECT_THAT(outcome.text, HasSubstr("gate uniform_147KB_reserve_p99_us "));
  EXPECT_THAT(outcome.text, HasSubstr("gate uniform_147KB_reserve_and_publish_p99_us "));
  EXPECT_THAT(outcome.text, HasSubstr("gate uniform_147KB_hit_points_below_ideal "));
  EXPECT_THAT(outcome.text, ::testing::Not(HasSubstr("mixed")));
}

TEST(MemoryCommandTest, RefusesFlagsThatMakeNoSense) {
  EXPECT_FALSE(RunCommand({"--only", "everything"}).parsed);
  EXPECT_FALSE(RunCommand({"--huge-pages", "maybe"}).parsed);
  EXPECT_FALSE(RunCommand({"--insertions", "1"}).parsed);
  for (const auto& flags : std::vector<std::vector<std::string>>{
           {"--pool-bytes", "much"},
           {"--segment-bytes", "3MiB"},
           {"--segment-bytes", "1MiB"},
           {"--pool-bytes", "64MiB", "--segment-bytes", "64MiB"}}) {
    const CommandOutcome outcome = RunCommand(flags);
    EXPECT_EQ(outcome.code, kExitUsage) << flags.back();
    EXPECT_THAT(outcome.errors, HasSubstr("ems-bench memory: "));
  }
}

}  // namespace
}  // namespace ems::bench
