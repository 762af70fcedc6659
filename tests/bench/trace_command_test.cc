#include "bench/trace_command.h"

#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "bench/report.h"

namespace ems::bench {
namespace {

// Parses and, when that went well, runs.
struct Outcome {
  bool parsed = false;
  int code = -1;
  std::string errors;
};

Outcome RunCommand(std::vector<std::string> arguments) {
  CLI::App app;
  app.require_subcommand(1);
  std::function<int()> run;
  AddTraceCommand(&app, &run);
  std::reverse(arguments.begin(), arguments.end());  // CLI11 takes them from the back
  Outcome outcome;
  try {
    app.parse(arguments);
  } catch (const CLI::ParseError&) {
    return outcome;
  }
  outcome.parsed = true;
  ::testing::internal::CaptureStderr();
  outcome.code = run();
  outcome.errors = ::testing::internal::GetCapturedStderr();
  return outcome;
}

TEST(TraceCommandTest, RefusesFlagsThatMakeNoSense) {
  EXPECT_FALSE(RunCommand({"trace", "--concurrency", "0"}).parsed);
  EXPECT_FALSE(RunCommand({"trace", "--capacity-percent", "101"}).parsed);
  EXPECT_FALSE(RunCommand({"trace", "--speedup", "-1"}).parsed);
  EXPECT_FALSE(RunCommand({"trace", "--trace", "/nonexistent"}).parsed);
  EXPECT_FALSE(RunCommand({"trace", "--transport", "pigeon"}).parsed);
  EXPECT_FALSE(RunCommand({"trace", "--unknown"}).parsed);
  EXPECT_FALSE(RunCommand({"trace", "--namespace", "mine", "--capacity-percent", "5"}).parsed);
}

TEST(TraceCommandTest, SizesThatAreOutOfBoundsAreUsageErrors) {
  for (const char* bytes : {"0", "65MiB", "many"}) {
    const Outcome outcome = RunCommand({"trace", "--block-bytes", bytes, "--requests", "10"});
    ASSERT_TRUE(outcome.parsed);
    EXPECT_EQ(outcome.code, kExitUsage) << bytes;
    EXPECT_NE(outcome.errors.find("ems-bench trace: "), std::string::npos) << outcome.errors;
  }
  const Outcome memory =
      RunCommand({"trace", "--block-bytes", "64MiB", "--concurrency", "256", "--requests", "100"});
  EXPECT_EQ(memory.code, kExitUsage);
  EXPECT_NE(memory.errors.find("--concurrency"), std::string::npos) << memory.errors;
}

TEST(TraceCommandTest, AFileThatIsNoTraceIsAUsageErrorWithItsLine) {
  const Outcome outcome = RunCommand({"trace", "--trace", EMS_SOURCE_DIR "/bench/data/NOTICE"});
  ASSERT_TRUE(outcome.parsed);
  EXPECT_EQ(outcome.code, kExitUsage);
  EXPECT_NE(outcome.errors.find("NOTICE:1: "), std::string::npos) << outcome.errors;
}

}  // namespace
}  // namespace ems::bench
