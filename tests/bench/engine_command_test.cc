// What must hold: the engine bench measures each part at small size, writes what it measured, and
// refuses settings that make no sense.
#include "bench/engine_command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/report.h"

namespace ems::bench {
namespace {

using ::testing::HasSubstr;

// Parses and, when that went well, runs.
struct Outcome {
  bool parsed = false;
  int code = -1;
  std::string text, errors;
};

Outcome RunCommand(std::vector<std::string> arguments) {
  CLI::App app;
  app.require_subcommand(1);
  std::function<int()> run;
  AddEngineCommand(&app, &run);
  arguments.insert(arguments.begin(), "engine");
  std::reverse(arguments.begin(), arguments.end());  // CLI11 takes them from the back
  Outcome outcome;
  try {
    app.parse(arguments);
  } catch (const CLI::ParseError&) {
    return outcome;
  }
  outcome.parsed = true;
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  outcome.code = run();
  outcome.text = ::testing::internal::GetCapturedStdout();
  outcome.errors = ::testing::internal::GetCapturedStderr();
  return outcome;
}

TEST(EngineCommandTest, QuickRunMeasuresEveryPart) {
  const std::string path = ::testing::TempDir() + "/engine.json";
  const Outcome outcome =
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
  const Outcome outcome = RunCommand({"--quick", "--gate", "--model", "tiny"});
  EXPECT_THAT(outcome.text, HasSubstr("gate engine_product_of_peak "));
  EXPECT_THAT(outcome.text, HasSubstr("gate engine_prefill_of_peak "));
}

TEST(EngineCommandTest, RefusesFlagsThatMakeNoSense) {
  EXPECT_FALSE(RunCommand({"--model", "huge"}).parsed);
  EXPECT_FALSE(RunCommand({"--weights", "fp4"}).parsed);
  EXPECT_FALSE(RunCommand({"--threads", "0"}).parsed);
  const Outcome outcome = RunCommand({"--model", "tiny", "--prompt-tokens", "9000"});
  EXPECT_EQ(outcome.code, kExitUsage);
  EXPECT_THAT(outcome.errors, HasSubstr("8192 positions"));
}

}  // namespace
}  // namespace ems::bench
