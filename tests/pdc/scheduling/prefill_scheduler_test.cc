// What must hold: each request is assigned once, the oldest is never passed over, budgets hold, and
// groups end up with even costs.
#include "pdc/scheduling/prefill_scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

namespace ems::pdc {
namespace {

// Prefix hits make a prompt cheaper, not free.
double Cost(const Request& r) {
  return static_cast<double>(r.new_tokens()) + 0.1 * static_cast<double>(r.cached_tokens);
}

Request Of(uint64_t id, uint64_t input, uint64_t cached = 0) {
  return {.id = id, .input_tokens = input, .cached_tokens = cached};
}

PrefillScheduler Make(int groups, uint64_t new_tokens_max = 1000) {
  return PrefillScheduler({.groups = groups, .new_tokens_max = new_tokens_max}, Cost);
}

TEST(PrefillSchedulerTest, NothingWaitsNothingIsAssigned) {
  PrefillScheduler scheduler = Make(3);
  const auto step = scheduler.NextStep();
  ASSERT_EQ(step.size(), 3U);
  for (const auto& group : step) EXPECT_TRUE(group.empty());
}

TEST(PrefillSchedulerTest, DealsTheCostliestFirstToTheLeastLoaded) {
  PrefillScheduler scheduler = Make(2);
  for (const uint64_t tokens : {100, 600, 500, 200})
    ASSERT_TRUE(scheduler.Enqueue(Of(tokens, tokens)).ok());
  const auto step = scheduler.NextStep();
  // 100 is the oldest and starts; then 600 to the other, 500 to the first, 200 beside 100 + 500.
  const auto sum = [](const std::vector<Request>& group) {
    uint64_t tokens = 0;
    for (const Request& r : group) tokens += r.input_tokens;
    return tokens;
  };
  EXPECT_EQ(sum(step[0]) + sum(step[1]), 1400U);
  EXPECT_EQ(std::max(sum(step[0]), sum(step[1])), 800U);
  EXPECT_EQ(scheduler.queued(), 0U);
  EXPECT_EQ(scheduler.queued_cost(), 0);
}

TEST(PrefillSchedulerTest, APrefixHitCountsAsLessWork) {
  PrefillScheduler scheduler = Make(2, 10'000);
  ASSERT_TRUE(scheduler.Enqueue(Of(1, 1000)).ok());
  ASSERT_TRUE(scheduler.Enqueue(Of(2, 1000, 900)).ok());  // costs 190
  ASSERT_TRUE(scheduler.Enqueue(Of(3, 500)).ok());
  ASSERT_TRUE(scheduler.Enqueue(Of(4, 300)).ok());
  const auto step = scheduler.NextStep();
  ASSERT_EQ(step[0].size(), 1U) << "the whole prompt alone";
  EXPECT_EQ(step[0][0].id, 1U);
  EXPECT_EQ(step[1].size(), 3U);
}

TEST(PrefillSchedulerTest, KeepsBudgetsAndTheOrderOfWhatIsLeft) {
  PrefillScheduler scheduler = Make(1, 100);
  for (uint64_t id = 1; id <= 5; ++id) ASSERT_TRUE(scheduler.Enqueue(Of(id, 40)).ok());
  std::vector<uint64_t> order;
  for (int i = 0; i < 3; ++i) {
    const auto step = scheduler.NextStep();
    EXPECT_LE(step[0].size(), 2U);
    for (const Request& r : step[0]) order.push_back(r.id);
  }
  EXPECT_EQ(order, (std::vector<uint64_t>{1, 2, 3, 4, 5}));
}

TEST(PrefillSchedulerTest, APromptLongerThanAnyBudgetGoesAlone) {
  PrefillScheduler scheduler = Make(1, 100);
  ASSERT_TRUE(scheduler.Enqueue(Of(1, 5000)).ok());
  ASSERT_TRUE(scheduler.Enqueue(Of(2, 1)).ok());
  auto step = scheduler.NextStep();
  ASSERT_EQ(step[0].size(), 1U);
  EXPECT_EQ(step[0][0].id, 1U);
  step = scheduler.NextStep();
  ASSERT_EQ(step[0].size(), 1U);
  EXPECT_EQ(step[0][0].id, 2U);
}

TEST(PrefillSchedulerTest, TheOldestIsInTheNextStepWhateverItCosts) {
  PrefillScheduler scheduler = Make(2, 100);
  ASSERT_TRUE(scheduler.Enqueue(Of(1, 1)).ok());
  for (uint64_t id = 2; id < 40; ++id) ASSERT_TRUE(scheduler.Enqueue(Of(id, 90)).ok());
  const auto step = scheduler.NextStep();
  bool found = false;
  for (const auto& group : step)
    for (const Request& r : group) found = found || r.id == 1;
  EXPECT_TRUE(found);
}

TEST(PrefillSchedulerTest, RefusesNothingToComputeAndAFullQueue) {
  PrefillScheduler scheduler({.groups = 1, .queue_max = 1}, Cost);
  EXPECT_EQ(scheduler.Enqueue(Of(1, 5, 5)).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(scheduler.Enqueue(Of(2, 5)).ok());
  EXPECT_EQ(scheduler.Enqueue(Of(3, 5)).code(), StatusCode::kResourceExhausted);
}

TEST(PrefillSchedulerTest, ACancelledRequestIsNotAssigned) {
  PrefillScheduler scheduler = Make(1);
  ASSERT_TRUE(scheduler.Enqueue(Of(1, 5)).ok());
  ASSERT_TRUE(scheduler.Enqueue(Of(2, 7)).ok());
  EXPECT_TRUE(scheduler.Cancel(1));
  EXPECT_FALSE(scheduler.Cancel(1));
  EXPECT_EQ(scheduler.queued_cost(), 7);
  const auto step = scheduler.NextStep();
  ASSERT_EQ(step[0].size(), 1U);
  EXPECT_EQ(step[0][0].id, 2U);
}

TEST(PrefillSchedulerTest, EveryRequestIsAssignedExactlyOnceAndTheSameWayAgain) {
  const auto run = [] {
    PrefillScheduler scheduler({.groups = 8, .new_tokens_max = 4000, .context_tokens_max = 9000},
                               Cost);
    std::mt19937_64 random(3);
    std::vector<std::vector<uint64_t>> steps;
    uint64_t id = 0;
    while ((id < 2000 || scheduler.queued() > 0) && steps.size() < 20'000) {
      for (int i = 0; i < 30 && id < 2000; ++i) {
        const uint64_t input = 1 + random() % 3000;
        EXPECT_TRUE(scheduler.Enqueue(Of(id++, input, random() % input)).ok());
      }
      for (const auto& group : scheduler.NextStep()) {
        uint64_t fresh = 0, context = 0;
        steps.emplace_back();
        for (const Request& r : group) {
          fresh += r.new_tokens();
          context += r.input_tokens;
          steps.back().push_back(r.id);
        }
        EXPECT_LE(fresh, 4000U);
        EXPECT_LE(context, 9000U);
      }
    }
    return steps;
  };
  const auto steps = run();
  std::set<uint64_t> seen;
  size_t assigned = 0;
  for (const auto& group : steps) {
    assigned += group.size();
    seen.insert(group.begin(), group.end());
  }
  EXPECT_EQ(assigned, 2000U);
  EXPECT_EQ(seen.size(), 2000U);
  EXPECT_EQ(steps, run());
}

}  // namespace
}  // namespace ems::pdc
