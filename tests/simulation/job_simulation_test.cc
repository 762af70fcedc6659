// What must hold: every rule of a job, whatever befalls its servers; and the simulation notices
// when one of them is left out.
#include "tests/simulation/job_simulation.h"

#include <gtest/gtest.h>

#include <map>

#include "proto/model.pb.h"

namespace ems::simulation {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr uint64_t kSeeds = 50;
#else
constexpr uint64_t kSeeds = 1000;
#endif

TEST(JobSimulationTest, EveryRuleHolds) {
  std::map<int, int> ends;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const JobOutcome outcome = SimulateJob({.seed = seed});
    ASSERT_EQ(outcome.violation, "") << "seed " << seed;
    ++ends[outcome.state];
  }
  EXPECT_GT(ends[v1::PULL_DONE], static_cast<int>(kSeeds / 20)) << "jobs end well, too";
  EXPECT_GT(ends[v1::PULL_FAILED], static_cast<int>(kSeeds / 20));
}

TEST(JobSimulationTest, WithoutFaultsAJobIsDone) {
  for (uint64_t seed = 1; seed <= 20; ++seed)
    EXPECT_EQ(SimulateJob({.seed = seed, .faults = 0}).state, v1::PULL_DONE) << seed;
}

// Each rule is there for a reason: without it, some run goes wrong.
TEST(JobSimulationTest, ABrokenRuleIsNoticed) {
  for (const std::string& rule : BreakableJobRules()) {
    JobOptions options;
    ASSERT_TRUE(BreakJobRule(rule, &options.rules));
    bool noticed = false;
    for (options.seed = 1; options.seed <= 5000 && !noticed; ++options.seed)
      noticed = !SimulateJob(options).violation.empty();
    EXPECT_TRUE(noticed) << rule;
  }
  JobOptions options;
  EXPECT_FALSE(BreakJobRule("no such rule", &options.rules));
}

}  // namespace
}  // namespace ems::simulation
