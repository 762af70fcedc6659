// What must hold: cached tokens are cheaper than computed ones and never free, the busiest group
// sets the pace, and pairs are those of a causal mask.
#include "pdc/cost_model/prefill_cost.h"

#include <gtest/gtest.h>

#include <vector>

namespace ems::pdc {
namespace {

const CostConstants kConstants;

PrefillWork Prompts(int count, double input, double cached = 0) {
  PrefillWork work;
  for (int i = 0; i < count; ++i) work.Add(input, cached);
  return work;
}

TEST(PrefillCostTest, CountsThePairsOfACausalMask) {
  const PrefillWork whole = Prompts(1, 1000);
  EXPECT_DOUBLE_EQ(whole.pairs, 1000.0 * 500);
  // A prefix and its suffix have all pairs of the whole.
  PrefillWork parts = Prompts(1, 600);
  parts += Prompts(1, 1000, 600);
  EXPECT_DOUBLE_EQ(parts.pairs, whole.pairs);
  EXPECT_DOUBLE_EQ(parts.new_tokens, whole.new_tokens);
}

TEST(PrefillCostTest, ReuseShortensAStepAndLeavesALoad) {
  const PrefillCost cost(kConstants);
  double before = 1e9, load = 0;
  for (const double cached : {0.0, 512.0, 2048.0, 3584.0}) {
    const PrefillStep step = cost.UniformStep({}, Prompts(8, 4096, cached));
    EXPECT_LT(step.total_ms(), before);
    EXPECT_TRUE(cached == 0 ? step.load_ms == 0 : step.load_ms > load);
    before = step.total_ms();
    load = step.load_ms;
  }
}

TEST(PrefillCostTest, TheVpcPlaneCostsOnlyTheLoad) {
  const PrefillCost cost(kConstants);
  const PrefillStep ub = cost.UniformStep({}, Prompts(8, 4096, 2048));
  const PrefillStep vpc = cost.UniformStep({.plane = CachePlane::kVpc}, Prompts(8, 4096, 2048));
  EXPECT_EQ(ub.compute_ms, vpc.compute_ms);
  EXPECT_GT(vpc.load_ms, ub.load_ms);
}

TEST(PrefillCostTest, PerfectBalanceAndMicrobatchesAreFaster) {
  const PrefillCost cost(kConstants);
  const double normal = cost.UniformStep({}, Prompts(8, 4096)).total_ms();
  EXPECT_LT(cost.UniformStep({.perfect_eplb = true}, Prompts(8, 4096)).total_ms(), normal);
  EXPECT_GT(cost.UniformStep({.microbatching = false}, Prompts(8, 4096)).total_ms(), normal);
}

TEST(PrefillCostTest, TheBusiestGroupSetsThePace) {
  const PrefillCost cost(kConstants);
  const PrefillInstance instance;
  std::vector<PrefillWork> even(8, Prompts(2, 4096));
  std::vector<PrefillWork> uneven(8, Prompts(1, 4096));
  uneven[3] = Prompts(9, 4096);
  EXPECT_LT(cost.Step(instance, even).total_ms(), cost.Step(instance, uneven).total_ms());
}

TEST(PrefillCostTest, LongerPromptsAreDearerByTheToken) {
  const PrefillCost cost(kConstants);
  EXPECT_GT(cost.UniformStep({}, Prompts(1, 32'768)).total_ms(),
            cost.UniformStep({}, Prompts(8, 4096)).total_ms());
  EXPECT_EQ(cost.UniformStep({}, {}).total_ms(), 0);
  EXPECT_GT(cost.PromptMs({}, 8192, 0), cost.PromptMs({}, 8192, 4096));
}

}  // namespace
}  // namespace ems::pdc
