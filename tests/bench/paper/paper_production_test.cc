#include "bench/paper/paper_production.h"

#include <gtest/gtest.h>

namespace ems::bench {
namespace {

TEST(PaperProductionTest, KeepsItsSlaWithAsManyRequestsAsItCan) {
  const pdc::CostConstants constants;
  const ProductionPoint tight = SimulateProduction(constants, 25);
  const ProductionPoint normal = SimulateProduction(constants, 35);
  EXPECT_GT(tight.requests_per_die, 0);
  EXPECT_GT(normal.requests_per_die, tight.requests_per_die);
  EXPECT_GT(normal.requests_per_s, tight.requests_per_s);
  EXPECT_LT(tight.tpot_ms, normal.tpot_ms);
  // The simulated mean beside the one that the rate was computed from.
  EXPECT_NEAR(normal.tpot_ms, 35, 2);
  EXPECT_GT(normal.ttft_ms, tight.ttft_ms);
}

TEST(PaperProductionTest, AnSlaThatNoBatchKeepsHasNoPoint) {
  EXPECT_EQ(SimulateProduction(pdc::CostConstants{}, 1).requests_per_die, 0);
}

}  // namespace
}  // namespace ems::bench
