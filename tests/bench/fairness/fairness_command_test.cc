// What must hold: the fairness bench needs no cluster, reports both contrasts, holds its exact gate
// and refuses settings that make no sense.
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
#include "tests/support/paths.h"
#include "tests/support/temp_path.h"

namespace ems::bench {
namespace {

using ::testing::HasSubstr;

CommandOutcome RunCommand(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "fairness");
  return RunBench(AddFairnessCommand, std::move(arguments));
}

TEST(FairnessCommandTest, QuickRunHoldsItsExactGate) {
  const ::ems::testing::TempPath json_file("fairness.json");
  const std::string& path = json_file.path();
  const CommandOutcome outcome =
      RunCommand({"--quick", "--gets", "200", "--puts", "10", "--gate", "exact", "--json", path,
                  "--programs", ems::testing::BinDir()});
  ASSERT_EQ(outcome.code, kExitOk) << outcome.text << outcome.errors;
  EXPECT_THAT(outcome.text, HasSubstr("gate evicted_objects 0 "));
  std::ifstream file(path);
  const auto json = nlohmann::json::parse(file, nullptr, false);
  ASSERT_TRUE(json.is_object());
  ASSERT_EQ(json["calls"].size(), 2U);
  for (const auto& call : json["calls"]) EXPECT_GT(call["p99_ratio"], 0);
}

TEST(FairnessCommandTest, RefusesSettingsThatMakeNoSense) {
  for (const char* flag : {"--gets", "--puts"})
    EXPECT_FALSE(RunCommand({flag, "0"}).parsed) << flag;
}

}  // namespace
}  // namespace ems::bench
