// What must hold: each strategy reads from the source what it has to and no more, holds as many
// copies as it says, and hits where it has the model; a pool without room is refused before a load.
#include "bench/model/model_bench.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "cluster/controller_client.h"
#include "common/bytes.h"
#include "tests/support/cluster.h"
#include "tests/support/paths.h"

namespace ems::bench {
namespace {

class ModelBenchTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    auto started =
        ems::testing::Cluster::Start({.servers = 1, .controller_flags = {}, .server_flags = {}});
    ASSERT_TRUE(started.ok()) << ToString(started.status());
    cluster_ = std::move(*started);
  }
  static void TearDownTestSuite() { cluster_.reset(); }
  static ModelBenchSettings Settings() {
    return {.controller = cluster_->controller_address(),
            .program = ems::testing::BinDir() + "/ems-bench",
            .model_bytes = 8 * kMiB,
            .source_bytes_per_s = kGiB,
            .instances = 2,
            .models = 2,
            .switch_model_bytes = 8 * kMiB,
            .switches = 4,
            .warm_rounds = 1};
  }
  static inline std::unique_ptr<ems::testing::Cluster> cluster_;
};

TEST_F(ModelBenchTest, StrategiesReadAndHoldWhatTheySay) {
  const auto results = RunModelBench(Settings());
  ASSERT_TRUE(results.ok()) << ToString(results.status());
  ASSERT_EQ(results->strategies.size(), 3U);
  const StrategyFigures& none = results->strategies[0];
  const StrategyFigures& local = results->strategies[1];
  const StrategyFigures& ems = results->strategies[2];
  const uint64_t model = results->model_bytes;
  EXPECT_EQ(none.strategy, ModelStrategy::kNoCache);
  EXPECT_GE(none.source_bytes, 2 * model);
  EXPECT_EQ(none.dram_bytes, 0U);
  EXPECT_TRUE(none.warm_seconds.empty());
  EXPECT_EQ(none.hits, 0);
  EXPECT_GE(local.source_bytes, 2 * model);
  EXPECT_EQ(local.dram_bytes, 2 * model) << "a copy an instance";
  EXPECT_EQ(local.warm_seconds.size(), 2U);
  EXPECT_EQ(ems.source_bytes, model) << "whoever asks";
  EXPECT_GT(ems.dram_bytes, model);
  EXPECT_LT(ems.dram_bytes, 2 * model);
  EXPECT_EQ(ems.hits, 4);
  for (const StrategyFigures& one : results->strategies) {
    EXPECT_GT(one.cold_seconds, 0);
    EXPECT_EQ(one.switches, 4);
    EXPECT_EQ(one.switch_seconds.size(), 4U);
  }
  EXPECT_GT(results->copy_seconds, 0);
  ControllerClient controller(cluster_->controller_address(), "test");
  EXPECT_EQ(controller.ListNamespaces(Deadline::After(std::chrono::seconds(5)))->size(), 1U);
}

TEST_F(ModelBenchTest, APoolWithoutRoomIsRefused) {
  ModelBenchSettings settings = Settings();
  settings.model_bytes = 1000 * kGiB;
  const auto results = RunModelBench(settings);
  EXPECT_EQ(results.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(ToString(results.status()), ::testing::HasSubstr("the pool has"));
}

}  // namespace
}  // namespace ems::bench
