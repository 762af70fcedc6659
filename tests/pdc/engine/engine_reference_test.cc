// What must hold: the engine computes the model that its papers describe, whatever the shape,
// router and weights: an implementation in doubles without any of its tricks agrees.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pdc/engine/generation.h"
#include "tests/pdc/engine/engine_rig.h"
#include "tests/pdc/engine/reference_model.h"

namespace ems::pdc {
namespace {

using test::EngineRig;
using test::RandomTokens;
using test::ReferenceModel;
using test::TinyConfig;

// The largest difference, where logits have a spread of about 2.
double Difference(std::span<const float> got, const std::vector<std::vector<double>>& wanted) {
  double worst = 0;
  size_t i = 0;
  for (const auto& row : wanted)
    for (const double value : row)
      worst = std::max(worst, std::fabs(static_cast<double>(got[i++]) - value));
  EXPECT_EQ(i, got.size());
  return worst;
}

double DifferenceOf(const ModelConfig& config, KvStorage storage, size_t tokens = 90) {
  const ModelWeights weights = *ModelWeights::Make(config);
  EngineRig rig(Model::Make(weights), {.storage = storage, .block_tokens = 16});
  ReferenceModel reference(weights);
  const std::vector<TokenId> prompt = RandomTokens(tokens, 7);
  return Difference(rig.LogitsFor(prompt), reference.Logits(prompt));
}

constexpr double kNear = 2e-4;

TEST(EngineReferenceTest, TinyModelAgrees) {
  EXPECT_LT(DifferenceOf(TinyConfig(), KvStorage::kF32), kNear);
}

TEST(EngineReferenceTest, F32WeightsAndQueriesThroughALowRankAgree) {
  ModelConfig config = TinyConfig();
  config.weights = WeightDtype::kF32;
  config.q_lora_dim = 48;
  EXPECT_LT(DifferenceOf(config, KvStorage::kF32), kNear);
}

TEST(EngineReferenceTest, OddShapesAndSoftmaxRouterAgree) {
  ModelConfig config = TinyConfig();
  config.hidden = 80;
  config.heads = 3;
  config.nope_dim = 20;
  config.rope_dim = 6;
  config.value_dim = 13;
  config.latent_dim = 48;
  config.dense_dim = 112;
  config.experts = 5;
  config.experts_per_token = 3;
  config.shared_experts = 2;
  config.expert_dim = 48;
  config.router = RouterKind::kSoftmax;
  config.routed_scale = 1.5F;
  config.vocab = 300;
  EXPECT_LT(DifferenceOf(config, KvStorage::kF32), kNear);
}

TEST(EngineReferenceTest, DenseModelAndNoSharedExpertAgree) {
  ModelConfig config = TinyConfig();
  config.experts = 0;
  EXPECT_LT(DifferenceOf(config, KvStorage::kF32), kNear);
  config.experts = 4;
  config.shared_experts = 0;
  EXPECT_LT(DifferenceOf(config, KvStorage::kF32), kNear);
}

TEST(EngineReferenceTest, Int8WeightsMeanTheirScaledValues) {
  ModelConfig config = TinyConfig();
  config.weights = WeightDtype::kInt8;
  EXPECT_LT(DifferenceOf(config, KvStorage::kF32), kNear);
}

// Rounding of the cache shows, and stays small: the tolerance above can fail.
TEST(EngineReferenceTest, Bf16CacheIsNearAndNotTheSame) {
  const double difference = DifferenceOf(TinyConfig(), KvStorage::kBf16);
  EXPECT_GT(difference, kNear);
  EXPECT_LT(difference, 1.5);
}

TEST(EngineReferenceTest, MtpHeadAgrees) {
  ModelConfig config = TinyConfig();
  config.mtp = true;
  const ModelWeights weights = *ModelWeights::Make(config);
  EngineRig rig(Model::Make(weights), {.storage = KvStorage::kF32, .block_tokens = 16});
  ReferenceModel reference(weights);
  size_t equal = 0;
  for (size_t tokens : {1, 5, 63, 64, 65, 100}) {
    const std::vector<TokenId> prompt = RandomTokens(tokens, tokens);
    KvSequence kv(rig.arena.get());
    const ForwardOutput output = rig.Compute(&kv, prompt, LogitsOf::kLast);
    reference.Logits(prompt);
    const DraftItem item{&kv, output.hidden_row(0), 42};
    const auto drafts = rig.engine->Draft({&item, 1});
    ASSERT_TRUE(drafts.ok()) << drafts.status();
    const auto logits = reference.Draft(42);
    if (drafts->at(0) ==
        static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin()))
      ++equal;
  }
  EXPECT_EQ(equal, 6U);
}

}  // namespace
}  // namespace ems::pdc
