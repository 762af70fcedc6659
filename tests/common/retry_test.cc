// What must hold: delays double up to their bound with jitter of a half, and retries stay a tenth
// of requests beyond the burst.
#include "common/retry.h"

#include <gtest/gtest.h>

#include <vector>

namespace ems {
namespace {

using std::chrono::milliseconds;

TEST(BackoffTest, DelaysDoubleWithinHalfJitterUpToTheMost) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    Backoff backoff(seed, milliseconds(10), milliseconds(50));
    for (const Duration base : {milliseconds(10), milliseconds(20), milliseconds(40),
                                milliseconds(50), milliseconds(50)}) {
      const Duration delay = backoff.Next();
      EXPECT_GE(delay, base / 2) << "seed " << seed;
      EXPECT_LE(delay, base * 3 / 2) << "seed " << seed;
    }
  }
}

TEST(BackoffTest, ResetStartsOver) {
  Backoff backoff(1, milliseconds(10), milliseconds(1000));
  for (int i = 0; i < 10; ++i) backoff.Next();
  backoff.Reset();
  EXPECT_LE(backoff.Next(), milliseconds(15));
}

TEST(BackoffTest, SeedsSpread) {
  Backoff a(2), b(4);
  EXPECT_NE(a.Next(), b.Next());
}

TEST(RetryBudgetTest, AllowsTheBurstThenOneForTenRequests) {
  RetryBudget budget(5);
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(budget.TryRetry()) << i;
  EXPECT_FALSE(budget.TryRetry());
  for (int i = 0; i < 9; ++i) budget.OnRequest();
  EXPECT_FALSE(budget.TryRetry());
  budget.OnRequest();
  EXPECT_TRUE(budget.TryRetry());
  EXPECT_FALSE(budget.TryRetry());
}

TEST(RetryBudgetTest, NeverSavesMoreThanTheBurst) {
  RetryBudget budget(2);
  for (int i = 0; i < 1000; ++i) budget.OnRequest();
  EXPECT_TRUE(budget.TryRetry());
  EXPECT_TRUE(budget.TryRetry());
  EXPECT_FALSE(budget.TryRetry());
}

}  // namespace
}  // namespace ems
