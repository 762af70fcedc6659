// What must hold: the fabric bench needs no cluster, measures messages and every plane, writes what
// it measured, and refuses settings that make no sense.
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
  arguments.insert(arguments.begin(), "fabric");
  return RunBench(AddFabricCommand, std::move(arguments));
}

TEST(FabricCommandTest, QuickRunMeasuresRingsAndPlanes) {
  const ::ems::testing::TempPath json_file("fabric.json");
  const std::string& path = json_file.path();
  const CommandOutcome outcome =
      RunCommand({"--quick", "--scale", "50", "--checksums", "--json", path});
  ASSERT_EQ(outcome.code, kExitOk) << outcome.text << outcome.errors;
  std::ifstream file(path);
  const auto json = nlohmann::json::parse(file, nullptr, false);
  ASSERT_TRUE(json.is_object());
  EXPECT_EQ(json["ring"].size(), 5U);
  for (const auto& row : json["ring"]) {
    EXPECT_GT(row["messages"], 0);
    EXPECT_GT(row["send_p50_us"], 0);
    EXPECT_GT(row["bandwidth_vs_memcpy"], 0);
  }
  EXPECT_GT(json["probe"]["p50_us"], 0);
  EXPECT_EQ(json["pace"].size(), 13U);
  for (const auto& row : json["pace"]) {
    EXPECT_THAT(outcome.text, HasSubstr(row["transfer"].get<std::string>()));
    EXPECT_GE(row["latency_of_model"], 0.99) << "never faster than the model";
    EXPECT_LE(row["bandwidth_of_model"], 1.01);
  }
}

TEST(FabricCommandTest, RefusesSettingsThatMakeNoSense) {
  for (const auto& flags : std::vector<std::vector<std::string>>{{"--scale", "0"},
                                                                 {"--entries", "0"},
                                                                 {"--entry-bytes", "100"},
                                                                 {"--entry-bytes", "much"}}) {
    const CommandOutcome outcome = RunCommand(flags);
    EXPECT_EQ(outcome.code, kExitUsage) << flags.back();
    EXPECT_THAT(outcome.errors, HasSubstr("ems-bench fabric: "));
  }
}

}  // namespace
}  // namespace ems::bench
