// kv_program.c, an engine in C that is linked with libems.so alone, and the example of layer by
// layer loads, against real daemons.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/support/cluster.h"

namespace ems::testing {
namespace {

using ::testing::HasSubstr;

class KvProgramTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    Cluster::Options options;
    options.servers = 2;
    auto started = Cluster::Start(options);
    ASSERT_TRUE(started.ok()) << started.status();
    cluster_ = std::move(*started);
  }
  static void TearDownTestSuite() { cluster_.reset(); }

  static void Run(const std::string& what) {
    const auto run = RunProgram("../tests/bin/kv_program", {what, cluster_->controller_address()});
    ASSERT_TRUE(run.ok()) << run.status();
    EXPECT_EQ(run->exit_code, 0) << run->out;
  }
  static inline std::unique_ptr<Cluster> cluster_;
};

TEST_F(KvProgramTest, GroupsOfLayersWithSlotsOfTheirOwn) { Run("groups"); }
TEST_F(KvProgramTest, LayerByLayer) { Run("layers"); }
TEST_F(KvProgramTest, RanksThatShareSaveEachBlockOnce) { Run("ranks"); }
TEST_F(KvProgramTest, ThePolicySaysWhichPhasesAreSaved) { Run("policy"); }
TEST_F(KvProgramTest, BadInputIsACodeAndAText) { Run("bad"); }

TEST_F(KvProgramTest, TheExampleComputesOnceAndLoadsAfterwards) {
  const auto run = RunProgram("../examples/c/kv_layers", {cluster_->controller_address()});
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->exit_code, 0) << run->out;
  EXPECT_THAT(run->out, HasSubstr("0 blocks loaded, 8 computed\n8 blocks loaded, 0 computed\n"));
}

}  // namespace
}  // namespace ems::testing
