// What must hold: the control bench needs no cluster, reports placement and each change, holds its
// exact gates, and refuses settings that make no sense.
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
  arguments.insert(arguments.begin(), "control");
  return RunBench(AddControlCommand, std::move(arguments));
}

TEST(ControlCommandTest, QuickRunHoldsItsExactGates) {
  const ::ems::testing::TempPath json_file("control.json");
  const std::string& path = json_file.path();
  const CommandOutcome outcome = RunCommand(
      {"--quick", "--servers", "5", "--watchers", "20", "--gate", "exact", "--json", path});
  ASSERT_EQ(outcome.code, kExitOk) << outcome.text << outcome.errors;
  EXPECT_THAT(outcome.text, HasSubstr("gate delta_bytes_1000 "));
  EXPECT_THAT(outcome.text, HasSubstr("gate max_over_mean_100 "));
  std::ifstream file(path);
  const auto json = nlohmann::json::parse(file, nullptr, false);
  ASSERT_TRUE(json.is_object());
  EXPECT_EQ(json["placement"].size(), 2U);
  ASSERT_EQ(json["changes"].size(), 2U);
  for (const auto& change : json["changes"]) {
    EXPECT_GT(change["all_ms"], 0);
    EXPECT_GT(change["bytes"], 0);
  }
  EXPECT_GT(json["control"]["peak_rss_bytes"], 0);
}

TEST(ControlCommandTest, RefusesSettingsThatMakeNoSense) {
  for (const char* flag : {"--servers", "--watchers", "--connections", "--rounds"})
    EXPECT_FALSE(RunCommand({flag, "0"}).parsed) << flag;
}

}  // namespace
}  // namespace ems::bench
