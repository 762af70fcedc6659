// What must hold: the engine bench measures each part at small size, writes what it measured, and
// refuses settings that make no sense.
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
  arguments.insert(arguments.begin(), "engine");
  return RunBench(AddEngineCommand, std::move(arguments));
}

TEST(EngineCommandTest, QuickRunMeasuresEveryPart) {
  const ::ems::testing::TempPath json_file("engine.json");
  const std::string& path = json_file.path();
  const CommandOutcome outcome =
      RunCommand({"--quick", "--model", "tiny", "--weights", "int8", "--json", path});
  ASSERT_EQ(outcome.code, kExitOk) << outcome.text << outcome.errors;
  std::ifstream file(path);
  const auto json = nlohmann::json::parse(file, nullptr, false);
  ASSERT_TRUE(json.is_object());
  EXPECT_EQ(json["settings"]["config"]["weights"], "int8");
  for (const char* part : {"arithmetic", "prefill", "reuse", "decode"})
    EXPECT_GT(json[part].size(), 0U) << part;
  for (const auto& prefill : json["prefill"]) EXPECT_GT(prefill["tokens_per_s"], 0);
  EXPECT_THAT(outcome.text, HasSubstr("portable"));
}

TEST(EngineCommandTest, GatesPrintTheirLines) {
  const CommandOutcome outcome = RunCommand({"--quick", "--gate", "--model", "tiny"});
  EXPECT_THAT(outcome.text, HasSubstr("gate engine_product_of_peak "));
  EXPECT_THAT(outcome.text, HasSubstr("gate engine_prefill_of_peak "));
}

TEST(EngineCommandTest, RefusesFlagsThatMakeNoSense) {
  EXPECT_FALSE(RunCommand({"--model", "huge"}).parsed);
  EXPECT_FALSE(RunCommand({"--weights", "fp4"}).parsed);
  EXPECT_FALSE(RunCommand({"--threads", "0"}).parsed);
  const CommandOutcome outcome = RunCommand({"--model", "tiny", "--prompt-tokens", "9000"});
  EXPECT_EQ(outcome.code, kExitUsage);
  EXPECT_THAT(outcome.errors, HasSubstr("8192 positions"));
}

}  // namespace
}  // namespace ems::bench
