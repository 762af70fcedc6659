#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "bench/harness/commands.h"
#include "bench/harness/report.h"
#include "cluster/controller_client.h"
#include "common/bytes.h"
#include "tests/bench/harness/cluster_command.h"
#include "tests/bench/harness/run_command.h"
#include "tests/support/paths.h"
#include "tests/support/temp_path.h"

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

TEST(TraceCommandTest, ATraceIsMadeOrReadInOneOfTheFormats) {
  EXPECT_FALSE(RunCommand({"trace", "--make", "flat"}).parsed);
  EXPECT_FALSE(RunCommand({"trace", "--format", "xml"}).parsed);
  const std::string notice = testing::SourceDir() + "/bench/data/NOTICE";
  EXPECT_FALSE(RunCommand({"trace", "--make", "steep", "--trace", notice}).parsed);
  EXPECT_EQ(RunCommand({"trace", "--make", "steep", "--requests", "1000001"}).code, kExitUsage);
  const CommandOutcome csv = RunCommand({"trace", "--format", "csv", "--trace", notice});
  EXPECT_EQ(csv.code, kExitUsage);
  EXPECT_NE(csv.errors.find("NOTICE:1: the first line has to name the columns"), std::string::npos)
      << csv.errors;
}

TEST(TraceCommandTest, AFileThatIsNoTraceIsAUsageErrorWithItsLine) {
  const CommandOutcome outcome =
      RunCommand({"trace", "--trace", testing::SourceDir() + "/bench/data/NOTICE"});
  ASSERT_TRUE(outcome.parsed);
  EXPECT_EQ(outcome.code, kExitUsage);
  EXPECT_NE(outcome.errors.find("NOTICE:1: "), std::string::npos) << outcome.errors;
}

class TraceCommandClusterTest : public ClusterCommandTest {
 protected:
  TraceCommandClusterTest() : ClusterCommandTest("trace") {
    std::ofstream(trace_.path()) << R"({"timestamp": 0, "input_length": 1024, "output_length": 1, )"
                                 << R"("hash_ids": [0, 1]})";
  }
  const ::ems::testing::TempPath trace_{"trace"};
};

TEST_F(TraceCommandClusterTest, AShortTraceFitsWhateverShareOfItIsAskedFor) {
  const ProgramOutput ran = Run({"--trace", trace_.path(), "--capacity-percent", "1"});
  EXPECT_EQ(ran.exit_code, kExitOk) << ran.out;
  EXPECT_NE(ran.out.find("no errors"), std::string::npos) << ran.out;
}

TEST_F(TraceCommandClusterTest, BlocksThatAreRefusedFailTheRunUnlessErrorsAreExpected) {
  ControllerClient controller(cluster_->controller_address(), "test");
  NamespaceInfo small;
  small.name = "small";
  small.dram_quota_bytes = 16 * kKiB;  // two servers share it
  ASSERT_TRUE(controller.CreateNamespace(small, Deadline::After(std::chrono::seconds(5))).ok());
  const ProgramOutput ran = Run({"--trace", trace_.path(), "--namespace", "small"});
  EXPECT_EQ(ran.exit_code, kExitFailed) << ran.out;
  EXPECT_NE(ran.out.find("save OUT_OF_RANGE: 2 blocks; raise"), std::string::npos) << ran.out;
  EXPECT_EQ(Run({"--trace", trace_.path(), "--namespace", "small", "--expect-errors"}).exit_code,
            kExitOk);
}

}  // namespace
}  // namespace ems::bench
