// What must hold: the elastic bench needs no cluster, reports the hit rate of both runs over time
// and each change, finds no wrong byte, and refuses settings that make no sense.
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

CommandOutcome RunElasticCommand(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "elastic");
  return RunBench(AddElasticCommand, std::move(arguments));
}

// Whether calls fail is what it measures, and depends on the machine: here it is not judged.
TEST(ElasticCommandTest, QuickRunReportsAChangeWithoutAWrongByte) {
  const ::ems::testing::TempPath json_file("elastic.json");
  const std::string& path = json_file.path();
  const CommandOutcome outcome = RunElasticCommand(
      {"--quick", "--only", "join", "--rate", "50", "--warm", "100", "--block-bytes", "4KiB",
       "--gate", "exact", "--json", path, "--programs", ems::testing::BinDir()});
  ASSERT_TRUE(outcome.parsed) << outcome.errors;
  EXPECT_THAT(outcome.text, HasSubstr("gate wrong_bytes 0 <= 0 pass")) << outcome.errors;
  EXPECT_THAT(outcome.text, HasSubstr("gate join_failed_gets "));
  std::ifstream file(path);
  const auto json = nlohmann::json::parse(file, nullptr, false);
  ASSERT_TRUE(json.is_object());
  ASSERT_EQ(json["runs"].size(), 2U);
  EXPECT_EQ(json["runs"][0]["scenario"], "undisturbed");
  EXPECT_GE(json["runs"][0]["hit_percent"].size(), 3U);
  ASSERT_EQ(json["changes"].size(), 1U);
  EXPECT_EQ(json["changes"][0]["scenario"], "join");
}

TEST(ElasticCommandTest, RefusesSettingsThatMakeNoSense) {
  for (const char* flag : {"--servers", "--rate", "--window", "--concurrency"})
    EXPECT_FALSE(RunElasticCommand({flag, "0"}).parsed) << flag;
  EXPECT_FALSE(RunElasticCommand({"--only", "party"}).parsed);
  const CommandOutcome long_run = RunElasticCommand({"--window", "3600"});
  EXPECT_EQ(long_run.code, kExitUsage);
  EXPECT_THAT(long_run.errors, HasSubstr("lower --warm"));
}

}  // namespace
}  // namespace ems::bench
