// The paper's Table 2 (CM §4.4.3): what follows from its constants is within 5 % of what it says.
#include "bench/model/model_cost.h"

#include <gtest/gtest.h>

namespace ems::bench {
namespace {

void ExpectNear(double value, double paper) { EXPECT_NEAR(value, paper, 0.05 * paper); }

TEST(ModelCostTest, GivesThePapersTable) {
  const ModelCostInput paper;
  const ModelCost none = CostWithoutCache(paper);
  const ModelCost local = CostWithLocalDram(paper);
  const ModelCost ems = CostWithEms(paper);
  ExpectNear(none.cold_seconds, 2560);
  ExpectNear(local.cold_seconds, 2560);
  ExpectNear(ems.cold_seconds, 320);
  ExpectNear(local.warm_seconds, 5);
  ExpectNear(ems.warm_seconds, 5);
  EXPECT_EQ(none.dram_models, 0);
  EXPECT_EQ(local.dram_models, 8);
  EXPECT_EQ(ems.dram_models, 1);
  EXPECT_EQ(none.hit_rate, 0);
  EXPECT_EQ(local.hit_rate, 0.125);
  EXPECT_EQ(ems.hit_rate, 1);
  ExpectNear(none.switch_seconds, 320);
  ExpectNear(local.switch_seconds, 281);
  ExpectNear(ems.switch_seconds, 5);
}

TEST(ModelCostTest, FollowsItsInput) {
  ModelCostInput input;
  input.instances = 4;
  input.bucket_gb_per_s *= 2;
  EXPECT_NEAR(CostWithoutCache(input).cold_seconds, 4 * 160, 1);
  EXPECT_NEAR(CostWithEms(input).cold_seconds, 160, 1);
}

}  // namespace
}  // namespace ems::bench
