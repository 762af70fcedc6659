// What must hold: more work never takes less time, the parts add up, and MTP is worth what its
// acceptance says.
#include "pdc/cost_model/decode_cost.h"

#include <gtest/gtest.h>

namespace ems::pdc {
namespace {

const CostConstants kConstants;

TEST(DecodeCostTest, GrowsWithBatchAndContext) {
  const DecodeCost cost(kConstants);
  double before = 0;
  for (const double requests : {1.0, 4.0, 12.0, 32.0, 48.0, 64.0}) {
    const double ms = cost.Iteration({.requests_per_die = requests}).iteration_ms;
    EXPECT_GT(ms, before);
    before = ms;
  }
  before = 0;
  for (const double kv : {512.0, 2048.0, 8192.0, 32768.0}) {
    const double ms = cost.Iteration({.kv_tokens = kv}).iteration_ms;
    EXPECT_GT(ms, before);
    before = ms;
  }
}

TEST(DecodeCostTest, SerialPartsAddUp) {
  const DecodeLayer layer = DecodeCost(kConstants).Layer({.microbatching = Microbatching::kOff});
  EXPECT_FALSE(layer.microbatched);
  EXPECT_DOUBLE_EQ(layer.total_us, layer.projections_us + layer.attention_us + layer.experts_us +
                                       layer.dispatch_us + layer.combine_us + layer.vector_us +
                                       layer.launch_us);
}

TEST(DecodeCostTest, TakesTheFasterOfBothWays) {
  const DecodeCost cost(kConstants);
  for (const double requests : {1.0, 8.0, 48.0, 64.0}) {
    DecodeBatch batch{.requests_per_die = requests, .microbatching = Microbatching::kOff};
    const double off = cost.Layer(batch).total_us;
    batch.microbatching = Microbatching::kOn;
    const double on = cost.Layer(batch).total_us;
    batch.microbatching = Microbatching::kFaster;
    EXPECT_EQ(cost.Layer(batch).total_us, std::min(on, off));
  }
  EXPECT_TRUE(cost.Layer({.requests_per_die = 48}).microbatched);
  EXPECT_FALSE(cost.Layer({.requests_per_die = 2}).microbatched);
}

TEST(DecodeCostTest, NoOverlapIsBetterThanTheSlowerStream) {
  const DecodeLayer layer = DecodeCost(kConstants).Layer({.microbatching = Microbatching::kOn});
  EXPECT_GE(layer.total_us, 2 * (layer.projections_us + layer.attention_us));
  EXPECT_GE(layer.total_us, 2 * (layer.experts_us + layer.dispatch_us + layer.combine_us));
  EXPECT_GT(layer.attention_cores, 0);
  EXPECT_LT(layer.attention_cores, 24);
}

TEST(DecodeCostTest, TpotIsTheIterationOverItsTokens) {
  const DecodeCost cost(kConstants);
  const DecodeIteration with = cost.Iteration({.requests_per_die = 48, .mtp_acceptance = 0.5});
  EXPECT_DOUBLE_EQ(with.tpot_ms, with.iteration_ms / 1.5);
  EXPECT_DOUBLE_EQ(with.tokens_per_s_per_npu, 96 / with.tpot_ms * 1e3);
  const DecodeIteration without = cost.Iteration({.requests_per_die = 48, .mtp = false});
  EXPECT_EQ(without.mtp_ms, 0);
  EXPECT_DOUBLE_EQ(without.tpot_ms, without.iteration_ms);
  EXPECT_LT(without.iteration_ms, with.iteration_ms);
}

}  // namespace
}  // namespace ems::pdc
