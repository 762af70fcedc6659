// What must hold: the context bench runs against real daemons with every byte compared, says what
// it measured by workload and round, leaves no namespace behind, and refuses nonsense.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "bench/harness/commands.h"
#include "tests/bench/harness/cluster_command.h"

namespace ems::bench {
namespace {

using ::testing::HasSubstr;

class ContextCommandTest : public ClusterCommandTest {
 protected:
  ContextCommandTest() : ClusterCommandTest("context") {}
};

TEST_F(ContextCommandTest, QuickRunMeasuresAllWorkloadsAndTidiesUp) {
  const size_t namespaces = NamespaceCount();
  const std::string path = cluster_->folder() + "/context.json";
  const ProgramOutput ran =
      Run({"--quick", "--json", path, "--block-bytes", "64KiB", "--pause-servers"});
  ASSERT_EQ(ran.exit_code, 0) << ran.out;
  EXPECT_THAT(ran.out, HasSubstr("round 2"));
  EXPECT_THAT(ran.out, HasSubstr("break-even"));
  std::ifstream file(path);
  const auto json = nlohmann::json::parse(file, nullptr, false);
  ASSERT_TRUE(json.is_object());
  ASSERT_EQ(json["workloads"].size(), 5U);
  for (const auto& workload : json["workloads"]) {
    EXPECT_EQ(workload["wrong_bytes"], 0) << workload;
    EXPECT_EQ(workload["rounds"].size(), 2U);
    EXPECT_FALSE(workload.contains("errors"));
    EXPECT_GT(workload["lookup"]["p50_ms"], 0);
  }
  EXPECT_EQ(json["workloads"][0]["name"], "long-doc-qa");
  EXPECT_GT(json["workloads"][0]["rounds"][1]["loaded_blocks_percent"], 70);
  EXPECT_EQ(json["workloads"][2]["loaded_blocks_percent"], 0) << "nothing in common";
  EXPECT_EQ(json["paged"]["block_bytes"], 61 * 128 * 576 * 2);
  EXPECT_GT(json["paged"]["load_gb_per_s"], 0);
  EXPECT_EQ(json["paged"]["submit"]["count"], 208);
  EXPECT_GT(json["paged"]["submit_paused"]["count"], 0);
  EXPECT_EQ(NamespaceCount(), namespaces);
}

TEST_F(ContextCommandTest, NonsenseIsAUsageError) {
  EXPECT_EQ(Run({"--workloads", "chit-chat"}).exit_code, 2);
  EXPECT_EQ(Run({"--rounds", "0"}).exit_code, 2);
  EXPECT_EQ(Run({"--block-bytes", "1GiB"}).exit_code, 2);
  EXPECT_EQ(Run({"--rounds", "10000", "--prompts", "100000"}).exit_code, 2);
}

TEST_F(ContextCommandTest, MoreThanTheServersHaveIsSaidWithNumbers) {
  const ProgramOutput ran = Run({"--block-bytes", "16MiB", "--workloads", "random"});
  EXPECT_EQ(ran.exit_code, 1);
  EXPECT_THAT(ran.out, HasSubstr("the servers have"));
}

}  // namespace
}  // namespace ems::bench
