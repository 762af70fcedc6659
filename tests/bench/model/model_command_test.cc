// What must hold: the model bench runs against real daemons, compares every load, says what the
// source sent, leaves nothing behind, and refuses nonsense.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "bench/harness/commands.h"
#include "cluster/controller_client.h"
#include "cluster/models_client.h"
#include "proto/model.pb.h"
#include "tests/bench/harness/cluster_command.h"

namespace ems::bench {
namespace {

using ::testing::HasSubstr;

class ModelCommandTest : public ClusterCommandTest {
 protected:
  ModelCommandTest() : ClusterCommandTest("model") {}
};

TEST_F(ModelCommandTest, MeasuresAllStrategiesAndTidiesUp) {
  const std::string path = cluster_->folder() + "/model.json";
  const ProgramOutput ran =
      Run({"--bytes", "16MB", "--source-rate", "256MB", "--switch-bytes", "4MB", "--models", "3",
           "--instances", "3", "--switches", "6", "--json", path});
  ASSERT_EQ(ran.exit_code, 0) << ran.out;
  EXPECT_THAT(ran.out, HasSubstr("at the paper's scale"));
  std::ifstream file(path);
  const auto json = nlohmann::json::parse(file, nullptr, false);
  ASSERT_TRUE(json.is_object());
  ASSERT_EQ(json["strategies"].size(), 3U);
  const auto model = json["model_bytes"].get<uint64_t>();
  for (const size_t alone :
       {size_t{0}, size_t{1}}) {  // each instance reads the index of the shards besides
    const auto bytes = json["strategies"][alone]["source_bytes"].get<uint64_t>();
    EXPECT_GE(bytes, 3 * model);
    EXPECT_LE(bytes, 3 * model + 10'000);
  }
  EXPECT_EQ(json["strategies"][2]["source_bytes"], model) << "however many instances ask";
  // Headers of chunks are on top.
  EXPECT_GT(json["strategies"][2]["dram_bytes"], model);
  EXPECT_LT(json["strategies"][2]["dram_bytes"], 1.05 * static_cast<double>(model));
  EXPECT_EQ(json["strategies"][0]["switch_hit_rate"], 0);
  EXPECT_EQ(json["strategies"][2]["switch_hit_rate"], 1);
  EXPECT_GT(json["copy_seconds"], 0);
  ControllerClient controller(cluster_->controller_address(), "test");
  EXPECT_EQ(controller.ListNamespaces(Deadline::After(std::chrono::seconds(5)))->size(), 1U);
  ModelsClient models(cluster_->controller_address());
  v1::ListModelsReply list;
  ASSERT_EQ(models.List(0, Duration(0), &list, Deadline::After(std::chrono::seconds(5))),
            OkStatus());
  EXPECT_EQ(list.models_size(), 0);
}

TEST_F(ModelCommandTest, StartsAClusterWhenNoControllerIsGiven) {
  const auto ran = ::ems::testing::RunProgram(
      "ems-bench",
      {"model", "--bytes", "8MB", "--source-rate", "256MB", "--switch-bytes", "2MB", "--models",
       "2", "--instances", "2", "--switches", "2"},
      kBenchTimeout);
  ASSERT_TRUE(ran.ok()) << ToString(ran.status());
  EXPECT_EQ(ran->exit_code, 0) << ran->out;
  EXPECT_THAT(ran->out, HasSubstr("every load compared"));
}

TEST_F(ModelCommandTest, APoolThatIsTooSmallAndNonsenseAreToldSo) {
  const ProgramOutput small = Run({"--bytes", "100GB"});
  EXPECT_EQ(small.exit_code, 1);
  EXPECT_THAT(small.out, HasSubstr("the pool has"));
  EXPECT_EQ(Run({"--bytes", "1"}).exit_code, 2);
  EXPECT_EQ(Run({"--bytes", "many"}).exit_code, 2);
  EXPECT_EQ(Run({"--instances", "0"}).exit_code, 2);
}

}  // namespace
}  // namespace ems::bench
