#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "bench/harness/commands.h"
#include "bench/harness/report.h"
#include "tests/bench/harness/run_command.h"
#include "tests/support/paths.h"

namespace ems::bench {
namespace {

CommandOutcome RunCommand(std::vector<std::string> arguments) {
  return RunBench(AddTraceCommand, std::move(arguments));
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
    const CommandOutcome outcome =
        RunCommand({"trace", "--block-bytes", bytes, "--requests", "10"});
    ASSERT_TRUE(outcome.parsed);
    EXPECT_EQ(outcome.code, kExitUsage) << bytes;
    EXPECT_NE(outcome.errors.find("ems-bench trace: "), std::string::npos) << outcome.errors;
  }
  const CommandOutcome memory =
      RunCommand({"trace", "--block-bytes", "64MiB", "--concurrency", "256", "--requests", "100"});
  EXPECT_EQ(memory.code, kExitUsage);
  EXPECT_NE(memory.errors.find("--concurrency"), std::string::npos) << memory.errors;
}

TEST(TraceCommandTest, AFileThatIsNoTraceIsAUsageErrorWithItsLine) {
  const CommandOutcome outcome =
      RunCommand({"trace", "--trace", testing::SourceDir() + "/bench/data/NOTICE"});
  ASSERT_TRUE(outcome.parsed);
  EXPECT_EQ(outcome.code, kExitUsage);
  EXPECT_NE(outcome.errors.find("NOTICE:1: "), std::string::npos) << outcome.errors;
}

}  // namespace
}  // namespace ems::bench
