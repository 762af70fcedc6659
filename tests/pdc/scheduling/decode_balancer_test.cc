// What must hold: full groups take nothing, the emptiest of the others does, and room is charged
// and given back exactly.
#include "pdc/scheduling/decode_balancer.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace ems::pdc {
namespace {

Request Of(uint64_t id, uint64_t input, uint64_t output) {
  return {.id = id, .input_tokens = input, .output_tokens = output};
}

TEST(DecodeBalancerTest, TakesTheGroupWithTheLeastKv) {
  DecodeBalancer balancer({.groups = 3, .batch_max = 8, .kv_tokens_max = 1000});
  EXPECT_EQ(balancer.Place(Of(1, 300, 10)), 0);
  EXPECT_EQ(balancer.Place(Of(2, 100, 10)), 1);
  EXPECT_EQ(balancer.Place(Of(3, 200, 10)), 2);
  EXPECT_EQ(balancer.Place(Of(4, 50, 10)), 1);
}

TEST(DecodeBalancerTest, CountsTheReserveOfOutputsStillToCome) {
  DecodeBalancer balancer({.groups = 2, .batch_max = 8, .kv_tokens_max = 10'000});
  EXPECT_EQ(balancer.Place(Of(1, 100, 5000)), 0);
  EXPECT_EQ(balancer.Place(Of(2, 4000, 10)), 1);
  EXPECT_EQ(balancer.Place(Of(3, 10, 10)), 1) << "5100 tokens are spoken for on group 0";
}

TEST(DecodeBalancerTest, ReservesAStatedAmountForAnUnknownLength) {
  DecodeBalancer balancer(
      {.groups = 1, .batch_max = 8, .kv_tokens_max = 1000, .reserve_tokens = 400});
  EXPECT_EQ(balancer.Place(Of(1, 100, 0)), 0);
  EXPECT_EQ(balancer.kv_tokens(0), 500U);
  EXPECT_FALSE(balancer.Place(Of(2, 101, 0)).has_value());
}

TEST(DecodeBalancerTest, ExcludesGroupsAtTheirBatchLimitHoweverEmpty) {
  DecodeBalancer balancer({.groups = 2, .batch_max = 1, .kv_tokens_max = 1000});
  EXPECT_EQ(balancer.Place(Of(1, 1, 1)), 0);
  EXPECT_EQ(balancer.Place(Of(2, 900, 1)), 1);
  EXPECT_FALSE(balancer.Place(Of(3, 1, 1)).has_value());
  EXPECT_TRUE(balancer.Remove(2));
  EXPECT_EQ(balancer.Place(Of(3, 1, 1)), 1);
}

TEST(DecodeBalancerTest, ChargesWhatAnOutputReallyTakes) {
  DecodeBalancer balancer({.groups = 1, .batch_max = 8, .kv_tokens_max = 1000});
  ASSERT_TRUE(balancer.Place(Of(1, 100, 100)).has_value());
  EXPECT_TRUE(balancer.Charge(1, 900));
  EXPECT_EQ(balancer.kv_tokens(0), 900U);
  EXPECT_FALSE(balancer.Place(Of(2, 100, 1)).has_value());
  EXPECT_TRUE(balancer.Charge(1, 150));
  EXPECT_EQ(balancer.kv_tokens(0), 150U);
  EXPECT_TRUE(balancer.Remove(1));
  EXPECT_EQ(balancer.kv_tokens(0), 0U);
  EXPECT_FALSE(balancer.Charge(1, 5));
  EXPECT_FALSE(balancer.Remove(1));
}

TEST(DecodeBalancerTest, SaysWhatNeverFits) {
  const DecodeBalancer balancer({.groups = 1, .batch_max = 8, .kv_tokens_max = 1000});
  EXPECT_TRUE(balancer.NeverFits(Of(1, 900, 101)));
  EXPECT_FALSE(balancer.NeverFits(Of(1, 900, 100)));
}

TEST(DecodeBalancerTest, GivesNothingToAClosedGroupUntilItOpens) {
  DecodeBalancer balancer({.groups = 2, .batch_max = 8, .kv_tokens_max = 1000});
  ASSERT_EQ(balancer.Place(Of(1, 100, 10)), 0);
  balancer.SetOpen(1, false);
  EXPECT_FALSE(balancer.open(1));
  EXPECT_EQ(balancer.Place(Of(2, 100, 10)), 0) << "group 1 is emptier, but closed";
  balancer.SetOpen(0, false);
  EXPECT_FALSE(balancer.Place(Of(3, 1, 1)).has_value());
  EXPECT_FALSE(balancer.NeverFits(Of(3, 1, 1))) << "a group may open";
  balancer.SetOpen(1, true);
  EXPECT_EQ(balancer.Place(Of(3, 1, 1)), 1);
}

TEST(DecodeBalancerTest, AClosedGroupKeepsWhatItHasAndGivesItBack) {
  DecodeBalancer balancer({.groups = 1, .batch_max = 8, .kv_tokens_max = 1000});
  ASSERT_EQ(balancer.Place(Of(1, 100, 10)), 0);
  balancer.SetOpen(0, false);
  EXPECT_EQ(balancer.kv_tokens(0), 110U);
  EXPECT_TRUE(balancer.Charge(1, 200));
  EXPECT_EQ(balancer.kv_tokens(0), 200U);
  EXPECT_TRUE(balancer.Remove(1));
  EXPECT_EQ(balancer.kv_tokens(0), 0U);
}

TEST(DecodeBalancerTest, GroupsMayHaveRoomOfTheirOwn) {
  DecodeBalancer balancer({.groups = 2, .batch_max = 8, .kv_tokens_max = 1000});
  balancer.SetCapacity(0, 200);
  EXPECT_EQ(balancer.Place(Of(1, 300, 10)), 1);
  EXPECT_EQ(balancer.Place(Of(2, 100, 10)), 0);
  EXPECT_FALSE(balancer.NeverFits(Of(3, 900, 100)));
  balancer.SetCapacity(1, 200);
  EXPECT_TRUE(balancer.NeverFits(Of(3, 900, 100)));
  EXPECT_EQ(balancer.kv_tokens(1), 310U) << "what is there stays";
  EXPECT_FALSE(balancer.Place(Of(4, 1, 1)) == 1);
}

TEST(DecodeBalancerTest, AnOutputThatMayOutgrowAGroupGoesToABiggerOne) {
  DecodeBalancer balancer({.groups = 2, .batch_max = 8, .kv_tokens_max = 1000});
  balancer.SetCapacity(0, 500);
  const Request grows = {
      .id = 1, .input_tokens = 100, .output_tokens = 50, .output_tokens_max = 600};
  EXPECT_EQ(balancer.Place(grows), 1);
  EXPECT_EQ(balancer.kv_tokens(1), 150U) << "only what is expected is charged";
  const Request too_much = {
      .id = 2, .input_tokens = 100, .output_tokens = 50, .output_tokens_max = 901};
  EXPECT_TRUE(balancer.NeverFits(too_much));
  EXPECT_FALSE(balancer.Place(too_much).has_value());
}

TEST(DecodeBalancerTest, KeepsItsLimitsAndItsBooksUnderChurn) {
  constexpr uint64_t kBatch = 6, kKv = 5000;
  constexpr int kGroups = 5;
  DecodeBalancer balancer({.groups = kGroups, .batch_max = kBatch, .kv_tokens_max = kKv});
  std::mt19937_64 random(7);
  std::vector<uint64_t> placed;
  size_t refused = 0;
  for (uint64_t id = 0; id < 5000; ++id) {
    if (balancer.Place(Of(id, 1 + random() % 1500, 1 + random() % 500)))
      placed.push_back(id);
    else
      ++refused;
    if (random() % 2 == 0 && !placed.empty()) {
      const size_t at = random() % placed.size();
      ASSERT_TRUE(balancer.Remove(placed[at]));
      placed.erase(placed.begin() + static_cast<std::ptrdiff_t>(at));
    }
    for (int group = 0; group < kGroups; ++group) {
      ASSERT_LE(balancer.requests(group), kBatch);
      ASSERT_LE(balancer.kv_tokens(group), kKv);
    }
    ASSERT_EQ(balancer.placed(), placed.size());
  }
  EXPECT_GT(refused, 100U);
  for (const uint64_t id : placed) ASSERT_TRUE(balancer.Remove(id));
  for (int group = 0; group < kGroups; ++group) {
    EXPECT_EQ(balancer.requests(group), 0U);
    EXPECT_EQ(balancer.kv_tokens(group), 0U);
  }
}

}  // namespace
}  // namespace ems::pdc
