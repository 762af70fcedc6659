// Programs in C, linked with libems.so alone, against real daemons: faults in mid-batch, and the
// example of docs/C_API.md.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <string>

#include "tests/support/cluster.h"

namespace ems::testing {
namespace {

using ::testing::HasSubstr;

std::unique_ptr<Cluster> StartCluster() {
  Cluster::Options options;
  options.servers = 2;
  options.server_flags = {"--set", "dram.bytes=512MiB"};
  Result<std::unique_ptr<Cluster>> cluster = Cluster::Start(options);
  EXPECT_TRUE(cluster.ok()) << cluster.status();
  return cluster.ok() ? std::move(*cluster) : nullptr;
}

void ExpectSuccess(const Result<ProgramOutput>& run) {
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->exit_code, 0) << run->out;
  ::testing::Test::RecordProperty("printed", run->out);
}

TEST(CProgramTest, AServerKilledInMidBatchLeavesNoCompletionOut) {
  const auto cluster = StartCluster();
  ASSERT_NE(cluster, nullptr);
  ExpectSuccess(RunProgram("../tests/bin/c_program", {"kill", cluster->controller_address(),
                                                      std::to_string(cluster->server(0).pid())}));
}

TEST(CProgramTest, AServerThatHangsInMidBatchLeavesNoCompletionOut) {
  const auto cluster = StartCluster();
  ASSERT_NE(cluster, nullptr);
  ExpectSuccess(RunProgram("../tests/bin/c_program", {"stop", cluster->controller_address(),
                                                      std::to_string(cluster->server(1).pid())}));
  cluster->server(1).Signal(SIGCONT);
}

TEST(CProgramTest, TheExampleComputesOnceAndLoadsAfterwards) {
  const auto cluster = StartCluster();
  ASSERT_NE(cluster, nullptr);
  const auto run = RunProgram("../examples/c/kv_blocks", {cluster->controller_address()});
  ExpectSuccess(run);
  EXPECT_THAT(run->out, HasSubstr("0 blocks loaded, 8 computed\n8 blocks loaded, 0 computed\n"));
}

TEST(CProgramTest, TheExampleSaysThatTheControllerIsDead) {
  const auto run = RunProgram("../examples/c/kv_blocks", {"127.0.0.1:1"});
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->exit_code, 1);
  EXPECT_THAT(run->out, HasSubstr("connect: "));
  EXPECT_THAT(run->out, HasSubstr("127.0.0.1:1"));
}

}  // namespace
}  // namespace ems::testing
