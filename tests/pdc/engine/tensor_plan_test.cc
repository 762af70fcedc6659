// What must hold: the plan has each tensor once, as many parameters as the presets state, and
// INT8 only where it belongs.
#include "pdc/engine/tensor_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace ems::pdc {
namespace {

std::set<std::string> NamesOf(const ModelConfig& config) {
  std::set<std::string> names;
  for (const PlannedTensor& tensor : PlanTensors(config))
    EXPECT_TRUE(names.insert(tensor.name).second) << tensor.name;
  return names;
}

TEST(TensorPlanTest, PresetsHaveTheSizesTheyPromise) {
  const auto millions = [](const char* name) {
    return static_cast<double>(ParametersOf(*PresetConfig(name))) / 1e6;
  };
  EXPECT_NEAR(millions("tiny"), 0.2, 0.05);
  EXPECT_NEAR(millions("small"), 5.6, 0.5);
  EXPECT_NEAR(millions("base"), 29, 2);
  EXPECT_NEAR(millions("large"), 111, 5);
  const ModelConfig base = *PresetConfig("base");
  EXPECT_NEAR(static_cast<double>(ActiveParametersOf(base)) / 1e6, 9, 1);
}

TEST(TensorPlanTest, PartsComeAndGoWithTheConfig) {
  ModelConfig config;
  const std::set<std::string> plain = NamesOf(config);
  EXPECT_TRUE(plain.contains("model.layers.0.mlp.gate_proj.weight"));
  EXPECT_TRUE(plain.contains("model.layers.1.mlp.experts.7.down_proj.weight"));
  EXPECT_FALSE(plain.contains("model.layers.1.mlp.experts.8.down_proj.weight"));
  EXPECT_FALSE(plain.contains("model.mtp.eh_proj.weight"));
  config.mtp = true;
  config.q_lora_dim = 32;
  config.shared_experts = 0;
  const std::set<std::string> other = NamesOf(config);
  EXPECT_TRUE(other.contains("model.mtp.eh_proj.weight"));
  EXPECT_TRUE(other.contains("model.layers.2.self_attn.q_b_proj.weight"));
  EXPECT_FALSE(other.contains("model.layers.2.self_attn.q_proj.weight"));
  EXPECT_FALSE(other.contains("model.layers.1.mlp.shared_experts.up_proj.weight"));
}

TEST(TensorPlanTest, Int8HasAScaleForEachChannelAndSparesTheRest) {
  ModelConfig config;
  config.weights = WeightDtype::kInt8;
  const std::vector<PlannedTensor> plan = PlanTensors(config);
  size_t bytes = 0;
  for (size_t i = 0; i < plan.size(); ++i) {
    if (plan[i].dtype != model::DType::kI8) continue;
    ++bytes;
    ASSERT_LT(i + 1, plan.size());
    EXPECT_EQ(plan[i + 1].name, plan[i].name + "_scale");
    EXPECT_EQ(plan[i + 1].shape, std::vector<uint64_t>{plan[i].shape[0]});
    for (const char* spared : {"embed", "lm_head", "kv_b_proj", "mlp.gate.", "norm"})
      EXPECT_EQ(plan[i].name.find(spared), std::string::npos) << plan[i].name;
  }
  EXPECT_GT(bytes, 60U);
  ModelConfig plain;
  EXPECT_EQ(ParametersOf(config), ParametersOf(plain));
}

}  // namespace
}  // namespace ems::pdc
