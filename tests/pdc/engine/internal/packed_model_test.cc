// What must hold: each packed matrix and vector has the values of the tensor that it was made of,
// read back by multiplying with unit vectors; heads of kv_b_proj and the two sides of a gated part
// are where the layers look for them.
#include "pdc/engine/internal/packed_model.h"

#include <gtest/gtest.h>

#include "tests/pdc/engine/internal/layer_rig.h"

namespace ems::pdc::internal {
namespace {

using test::ReferenceModel;
using test::TinyConfig;

// [k][columns]. Exact: each sum has one product that is not 0.
std::vector<std::vector<double>> ElementsOf(const PackedMatrix& matrix) {
  const FloatRows unit(1, matrix.k()), out(1, matrix.columns());
  const FloatBuffer widened(matrix.k() * kPanel);
  std::vector<std::vector<double>> elements;
  for (size_t k = 0; k < matrix.k(); ++k) {
    unit.row(0)[k] = 1;
    KernelsByName("portable")
        ->multiply(matrix.Times(unit, 1, out, 0, matrix.panels(), widened.data()));
    unit.row(0)[k] = 0;
    elements.push_back(RowOf(out, 0, matrix.columns()));
  }
  return elements;
}

// The tensor's rows [first, first + columns) are the matrix's columns from `at` on.
void ExpectColumns(const PackedMatrix& matrix, const ReferenceModel::Matrix& tensor, size_t first,
                   size_t columns, size_t at = 0) {
  ASSERT_EQ(matrix.k(), tensor.in);
  ASSERT_LE(at + columns, matrix.columns());
  const auto elements = ElementsOf(matrix);
  for (size_t k = 0; k < tensor.in; ++k)
    for (size_t n = 0; n < columns; ++n)
      ASSERT_EQ(static_cast<float>(elements[k][at + n]),
                static_cast<float>(tensor.values[(first + n) * tensor.in + k]));
}
void ExpectWhole(const PackedMatrix& matrix, const ReferenceModel::Matrix& tensor) {
  EXPECT_EQ(matrix.columns(), tensor.out);
  ExpectColumns(matrix, tensor, 0, tensor.out);
}
void ExpectFloats(const FloatBuffer& floats, const ReferenceModel::Matrix& tensor) {
  ASSERT_EQ(floats.size(), tensor.values.size());
  for (size_t i = 0; i < floats.size(); ++i)
    ASSERT_EQ(static_cast<double>(floats.data()[i]), tensor.values[i]);
}

ModelConfig ConfigOf(WeightDtype weights) {
  ModelConfig config = TinyConfig();
  config.weights = weights;
  config.q_lora_dim = 48;
  config.mtp = true;
  return config;
}

TEST(PackedModelTest, MatricesHaveTheValuesOfTheirTensorsInAnyType) {
  for (const WeightDtype weights : {WeightDtype::kF32, WeightDtype::kBf16, WeightDtype::kInt8}) {
    LayerRig rig(ConfigOf(weights));
    const auto get = [&](const std::string& name) { return rig.reference.Get(name); };
    ExpectFloats(rig.model.embedding, get("model.embed_tokens"));
    ExpectFloats(rig.model.norm, get("model.norm"));
    ExpectWhole(rig.model.head, get("lm_head"));
    const AttentionWeights& attention = rig.model.layers[2].attention;
    const std::string self = "model.layers.2.self_attn.";
    ExpectWhole(attention.q_down, get(self + "q_a_proj"));
    ExpectWhole(attention.q, get(self + "q_b_proj"));
    ExpectWhole(attention.kv_down, get(self + "kv_a_proj_with_mqa"));
    ExpectWhole(attention.out, get(self + "o_proj"));
    ExpectFloats(attention.norm, get("model.layers.2.input_layernorm"));
    ExpectWhole(rig.model.layers[1].router, get("model.layers.1.mlp.gate"));
    ExpectWhole(rig.model.mtp.join, get("model.mtp.eh_proj"));
  }
}

TEST(PackedModelTest, AGatedPartHasGateAndUpSideBySide) {
  LayerRig rig(TinyConfig());
  const FeedForwardWeights& expert = rig.model.layers[1].experts[3];
  const std::string name = "model.layers.1.mlp.experts.3.";
  const auto gate = rig.reference.Get(name + "gate_proj"), up = rig.reference.Get(name + "up_proj");
  EXPECT_EQ(expert.inside(), gate.out);
  EXPECT_EQ(expert.gate_up.columns(), gate.out + up.out);
  ExpectColumns(expert.gate_up, gate, 0, gate.out);
  ExpectColumns(expert.gate_up, up, 0, up.out, gate.out);
  ExpectWhole(expert.down, rig.reference.Get(name + "down_proj"));
}

TEST(PackedModelTest, HeadsAreCutOutOfOneTensorTheirKeysFromTheOtherSide) {
  for (const WeightDtype weights : {WeightDtype::kF32, WeightDtype::kBf16}) {
    LayerRig rig(ConfigOf(weights));
    const ModelConfig& config = rig.model.config;
    const auto whole = rig.reference.Get("model.layers.1.self_attn.kv_b_proj");
    const AttentionWeights& packed = rig.model.layers[1].attention;
    ASSERT_EQ(packed.absorb.size(), config.heads);
    ASSERT_EQ(packed.value.size(), config.heads);
    for (size_t head = 0; head < config.heads; ++head) {
      const size_t first = head * (config.nope_dim + config.value_dim);
      ExpectColumns(packed.value[head], whole, first + config.nope_dim, config.value_dim);
      const auto absorb = ElementsOf(packed.absorb[head]);
      ASSERT_EQ(absorb.size(), config.nope_dim);
      for (size_t k = 0; k < config.nope_dim; ++k)
        EXPECT_EQ(
            absorb[k],
            std::vector<double>(
                whole.values.begin() + static_cast<std::ptrdiff_t>((first + k) * config.latent_dim),
                whole.values.begin() +
                    static_cast<std::ptrdiff_t>((first + k + 1) * config.latent_dim)));
    }
  }
}

TEST(PackedModelTest, WhatAConfigHasNotIsEmpty) {
  LayerRig rig(TinyConfig());
  EXPECT_TRUE(rig.model.layers[0].attention.q_down.empty());
  EXPECT_TRUE(rig.model.layers[0].experts.empty());
  EXPECT_FALSE(rig.model.layers[0].dense.gate_up.empty());
  EXPECT_EQ(rig.model.layers[1].experts.size(), rig.model.config.experts);
  EXPECT_TRUE(rig.model.layers[1].dense.gate_up.empty());
  EXPECT_FALSE(rig.model.layers[1].shared.down.empty());
  EXPECT_TRUE(rig.model.mtp.join.empty());
  ModelConfig config = TinyConfig();
  config.shared_experts = 0;
  config.mtp = true;
  LayerRig other(config);
  EXPECT_TRUE(other.model.layers[1].shared.down.empty());
  EXPECT_TRUE(other.model.mtp.attention.kv_down.empty()) << "it reads the last layer's cache";
}

TEST(PackedModelTest, RotationsAreAnglesOfThePosition) {
  LayerRig rig(TinyConfig());
  const ModelConfig& config = rig.model.config;
  const size_t half = config.rope_dim / 2;
  ASSERT_EQ(rig.model.cos.size(), config.positions_max * half);
  for (const size_t position :
       {size_t{0}, size_t{1}, size_t{77}, size_t{config.positions_max - 1}}) {
    for (size_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(position) /
                           std::pow(static_cast<double>(config.rope_base),
                                    static_cast<double>(i) / static_cast<double>(half));
      EXPECT_NEAR(rig.model.cos.data()[position * half + i], std::cos(angle), 1e-6);
      EXPECT_NEAR(rig.model.sin.data()[position * half + i], std::sin(angle), 1e-6);
    }
  }
}

}  // namespace
}  // namespace ems::pdc::internal
