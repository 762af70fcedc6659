// What must hold: the serving bench drives loops that run, prints and writes what it measured,
// fails loudly when their answers differ, and refuses settings that make no sense.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "bench/harness/commands.h"
#include "bench/harness/report.h"
#include "tests/bench/harness/run_command.h"
#include "tests/bench/serve/serving_fakes.h"
#include "tests/support/temp_path.h"

namespace ems::bench {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

CommandOutcome RunCommand(std::vector<std::string> arguments) {
  const std::vector<std::string> small = {"serve",           "--quick", "--prompt-tokens", "640",
                                          "--block-tokens",  "64",      "--system-tokens", "128",
                                          "--output-tokens", "8"};
  arguments.insert(arguments.begin(), small.begin(), small.end());
  return RunBench(AddServeCommand, std::move(arguments));
}

TEST(ServeCommandTest, TwoLoopsSideBySide) {
  const FakeLoop without({.caches = false}), with;
  const ::ems::testing::TempPath json_file("serve.json");
  const std::string& path = json_file.path();
  const CommandOutcome outcome =
      RunCommand({"--api", with.address(), "--api-without", without.address(), "--json", path});
  ASSERT_EQ(outcome.code, kExitOk) << outcome.text << outcome.errors;
  EXPECT_THAT(outcome.text, HasSubstr(" Serving Benchmark Result "));
  EXPECT_THAT(outcome.text, HasSubstr("without EMS     with EMS        ratio"));
  EXPECT_THAT(outcome.text, HasSubstr("round"));
  EXPECT_THAT(outcome.text, HasSubstr("every answer is the same"));
  std::ifstream file(path);
  const auto json = nlohmann::json::parse(file, nullptr, false);
  ASSERT_TRUE(json.is_object());
  EXPECT_EQ(json["passed"], true);
  EXPECT_EQ(json["different_answers"], 0);
  ASSERT_EQ(json["phases"].size(), 5U);
  EXPECT_EQ(json["phases"][1]["sides"][0]["cached_share"], 0);
  EXPECT_EQ(json["phases"][1]["sides"][1]["cached_share"], 0.5);
  EXPECT_EQ(json["phases"][4]["sides"][1]["cached_share"], 0.9);
  ASSERT_EQ(json["rounds"].size(), 2U);
  EXPECT_GT(json["rounds"][1]["sides"][1]["cached_share"], 0.5);
  EXPECT_EQ(json["settings"]["prompt_tokens"], 640);
}

TEST(ServeCommandTest, OneLoopAlone) {
  const FakeLoop loop;
  const CommandOutcome outcome = RunCommand({"--api", loop.address(), "--reuse", "0.25", "--rate",
                                             "500", "--concurrency", "4", "--own-system"});
  ASSERT_EQ(outcome.code, kExitOk) << outcome.text << outcome.errors;
  EXPECT_THAT(outcome.text, HasSubstr("============ Serving Benchmark Result ============"));
  EXPECT_THAT(outcome.text, HasSubstr("reuse 25 %, 500 a second"));
  EXPECT_THAT(outcome.text, Not(HasSubstr("without EMS")));
}

TEST(ServeCommandTest, RunsDoNotFindEachOthersBlocks) {
  const FakeLoop loop;
  for (int run = 0; run < 2; ++run) {
    const ::ems::testing::TempPath json_file("serve.json");
    const std::string& path = json_file.path();
    ASSERT_EQ(RunCommand({"--api", loop.address(), "--own-system", "--json", path}).code, kExitOk);
    std::ifstream file(path);
    const auto json = nlohmann::json::parse(file, nullptr, false);
    EXPECT_EQ(json["rounds"][0]["sides"][0]["cached_tokens"], 0) << run;
  }
}

TEST(ServeCommandTest, AnswersThatDifferFail) {
  const FakeLoop without({.caches = false}), with({.answer_seed = 1});
  const CommandOutcome outcome =
      RunCommand({"--api", with.address(), "--api-without", without.address()});
  EXPECT_EQ(outcome.code, kExitFailed);
  EXPECT_THAT(outcome.errors, HasSubstr("is not the same: without EMS says"));
  EXPECT_THAT(outcome.text, Not(HasSubstr("every answer is the same")));
}

TEST(ServeCommandTest, RequestsThatFailAreFailures) {
  FakeLoop loop;
  loop.generator().SetRefusal(Error(StatusCode::kUnavailable, "nobody is there"));
  const CommandOutcome outcome = RunCommand({"--api", loop.address()});
  EXPECT_EQ(outcome.code, kExitFailed);
  EXPECT_THAT(outcome.errors, HasSubstr("nobody is there"));
}

TEST(ServeCommandTest, ExactGatesPassWhereEverythingStoredIsFound) {
  const FakeLoop without({.caches = false}), with;
  const CommandOutcome outcome =
      RunCommand({"--api", with.address(), "--api-without", without.address(), "--rounds", "0",
                  "--gate", "exact"});
  EXPECT_EQ(outcome.code, kExitOk) << outcome.text << outcome.errors;
  EXPECT_THAT(outcome.text, HasSubstr("gate different_answers 0 <= 0 pass"));
  EXPECT_THAT(outcome.text, HasSubstr("gate stored_tokens_found_at_0.5_reuse 1 >= 1 pass"));
  EXPECT_THAT(outcome.text, HasSubstr("gate stored_tokens_found_at_0.9_reuse_loaded 1 >= 1 pass"));
  EXPECT_THAT(outcome.text, Not(HasSubstr("gate ttft_fall")));
}

// A loop whose answers come later than without EMS: the timed gates say so.
TEST(ServeCommandTest, TimedGatesFailWhereTtftDoesNotFall) {
  const FakeLoop without({.caches = false}),
      with({.first_token_after = std::chrono::milliseconds(30)});
  const CommandOutcome outcome = RunCommand(
      {"--api", with.address(), "--api-without", without.address(), "--rounds", "0", "--gate"});
  EXPECT_EQ(outcome.code, kExitFailed) << outcome.text;
  EXPECT_THAT(outcome.text, ::testing::ContainsRegex("gate ttft_fall_at_0.9_reuse .* fail"));
}

TEST(ServeCommandTest, RefusesFlagsThatMakeNoSense) {
  EXPECT_FALSE(RunCommand({"--model", "huge"}).parsed);
  EXPECT_FALSE(RunCommand({"--concurrency", "0"}).parsed);
  EXPECT_FALSE(RunCommand({"--concurrency", "65"}).parsed);
  EXPECT_FALSE(RunCommand({"--reuse", "1.5"}).parsed);
  EXPECT_EQ(RunCommand({"--reuse", "0.01"}).code, kExitUsage);
  EXPECT_EQ(RunCommand({"--api-without", "127.0.0.1:1"}).code, kExitUsage);
  EXPECT_EQ(RunCommand({"--api", "127.0.0.1:1", "--gate"}).code, kExitUsage);
  EXPECT_EQ(RunCommand({"--reuse", "0.7", "--gate"}).code, kExitUsage);
  const CommandOutcome nobody = RunCommand({"--api", "127.0.0.1:1"});
  EXPECT_EQ(nobody.code, kExitFailed);
  EXPECT_THAT(nobody.errors, HasSubstr("no serving loop at 127.0.0.1:1"));
}

}  // namespace
}  // namespace ems::bench
