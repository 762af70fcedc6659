// What must hold: the roofline meets its two ends, and Table 7 comes back from its own columns.
#include "pdc/cost_model/operators.h"

#include <gtest/gtest.h>

namespace ems::pdc {
namespace {

const CostConstants kConstants;

TEST(OperatorsTest, AFewRowsCostTheReadingOfTheWeights) {
  const Operators op(kConstants);
  // 1 GB at 84.1 % of 1600 GB/s.
  EXPECT_NEAR(op.Int8GemmUs(1, 1e9), 1e6 / (1600 * 0.841), 1e-6);
  EXPECT_NEAR(op.Bf16GemmUs(1, 1e9), 2e6 / (1600 * 0.841), 1e-6);
  EXPECT_EQ(op.Int8GemmUs(1, 1e9), op.Int8GemmUs(20, 1e9));
  EXPECT_EQ(op.Int8GemmUs(0, 1e9), 0);
}

TEST(OperatorsTest, ManyRowsCostArithmeticAtTheStatedEfficiency) {
  const Operators op(kConstants);
  const double rows = 7168, weights = 4096.0 * 4096;
  const double tops = 2e-6 * rows * weights / op.Int8GemmUs(rows, weights);
  EXPECT_GT(tops / 752, 0.77);  // Table 10
  EXPECT_LT(tops / 752, 0.83);
  EXPECT_NEAR(op.Bf16GemmUs(rows, weights), 2 * op.Int8GemmUs(rows, weights), 1e-6);
  EXPECT_NEAR(op.Int8GemmUs(rows, weights, 0.5), 2 * op.Int8GemmUs(rows, weights), 1e-6);
}

TEST(OperatorsTest, AttentionCoreIsBoundByArithmeticOrByTheKv) {
  const Operators op(kConstants);
  // 100 queries of 4096 tokens: 2 · 128 · (576 + 512) operations a pair at 65.4 % of 376 TFLOPS.
  EXPECT_NEAR(op.DecodeAttentionUs(100, 50, 4096), 100 * 4096 * 2.0 * 128 * 1088 / (376e6 * 0.654),
              1e-6);
  // Hardly any query, much KV: 1152 bytes a token and layer.
  EXPECT_NEAR(op.DecodeAttentionUs(1, 100, 4096), 100 * 4096 * 1152 / (1600e3 * 0.841), 1e-6);
}

TEST(OperatorsTest, GivesTable7AtItsColumnsAndBetween) {
  const Operators op(kConstants);
  EXPECT_EQ(Operators::DispatchTableUs(8), 116);
  EXPECT_EQ(Operators::DispatchTableUs(256), 152);
  EXPECT_EQ(Operators::CombineTableUs(32), 146);
  EXPECT_EQ(Operators::CombineTableUs(320), 149) << "beyond the table: its last column";
  EXPECT_GT(Operators::DispatchTableUs(48), 133);
  EXPECT_LT(Operators::DispatchTableUs(48), 141);
  EXPECT_NEAR(op.DispatchUs(128, 64), 141, 1e-9);
  EXPECT_NEAR(op.DispatchUs(64, 64), 20 + (141 - 20) / 2.0, 1e-9);
  EXPECT_NEAR(op.CombineUs(64, 64, 2), 20 + (150 - 20), 1e-9);
  EXPECT_EQ(op.CombineUs(0, 64), 0);
}

TEST(OperatorsTest, PlacesExpertsAsThePapersDo) {
  const ModelShape model;
  const ExpertPlacement prefill = PlaceExperts(model, 32);
  EXPECT_EQ(prefill.experts_per_rank, 9);  // and a redundant one, not read
  EXPECT_EQ(prefill.tokens_per_rank_token, 9);
  const ExpertPlacement decode = PlaceExperts(model, 320);
  EXPECT_EQ(decode.routed_ranks, 288);
  EXPECT_EQ(decode.shared_ranks, 32);
  EXPECT_EQ(decode.experts_per_rank, 1);
  EXPECT_EQ(decode.tokens_per_rank_token, 10) << "32 ranks have the shared expert of 320";
  EXPECT_EQ(PlaceExperts(model, 288).tokens_per_rank_token, 9);
}

TEST(OperatorsTest, ImbalanceAndTokensMakeExpertsSlower) {
  const Operators op(kConstants);
  const ExpertPlacement placement = PlaceExperts(kConstants.model, 32);
  double before = 0;
  for (const double tokens : {512.0, 1024.0, 4096.0}) {
    const double us = op.ExpertsUs(tokens, placement);
    EXPECT_GT(us, before);
    EXPECT_GT(op.ExpertsUs(tokens, placement, 1.5), us);
    before = us;
  }
}

}  // namespace
}  // namespace ems::pdc
