// What must hold: every prefill rank serves equally many decode ranks, in every shape that the
// formula is for, and other shapes are refused.
#include "pdc/pd_mapping.h"

#include <gtest/gtest.h>

#include <vector>

namespace ems::pdc {
namespace {

TEST(PdMappingTest, FollowsThePapersFormula) {
  // ratio 4 / 2 = 2, groups of 8 / 2 = 4: ranks 0 to 3 pull from 0 and 1, ranks 4 to 7 from 2
  // and 3.
  const Result<PdMapping> mapping =
      PdMapping::Make({.prefill_tp = 4, .decode_tp = 2, .decode_dp = 8});
  ASSERT_TRUE(mapping.ok());
  EXPECT_EQ(mapping->PrefillRank({.dp = 0, .tp = 0}), 0);
  EXPECT_EQ(mapping->PrefillRank({.dp = 3, .tp = 1}), 1);
  EXPECT_EQ(mapping->PrefillRank({.dp = 4, .tp = 0}), 2);
  EXPECT_EQ(mapping->PrefillRank({.dp = 7, .tp = 1}), 3);
  EXPECT_EQ(mapping->decode_ranks_per_prefill_rank(), 4);
}

TEST(PdMappingTest, EveryPrefillRankServesEquallyManyDecodeRanks) {
  int shapes = 0;
  for (int prefill_tp = 1; prefill_tp <= 32; ++prefill_tp) {
    for (int decode_tp = 1; decode_tp <= prefill_tp; ++decode_tp) {
      for (int decode_dp = 1; decode_dp <= 40; ++decode_dp) {
        const PdShape shape = {prefill_tp, decode_tp, decode_dp};
        const Result<PdMapping> mapping = PdMapping::Make(shape);
        const bool fits = prefill_tp % decode_tp == 0 && decode_dp % (prefill_tp / decode_tp) == 0;
        ASSERT_EQ(mapping.ok(), fits) << prefill_tp << " " << decode_tp << " " << decode_dp;
        if (!fits) continue;
        ++shapes;
        std::vector<int> served(static_cast<size_t>(prefill_tp), 0);
        for (int dp = 0; dp < decode_dp; ++dp)
          for (int tp = 0; tp < decode_tp; ++tp)
            served.at(static_cast<size_t>(mapping->PrefillRank({dp, tp}))) += 1;
        for (const int count : served)
          ASSERT_EQ(count, mapping->decode_ranks_per_prefill_rank())
              << prefill_tp << " " << decode_tp << " " << decode_dp;
      }
    }
  }
  EXPECT_GT(shapes, 500);
}

TEST(PdMappingTest, ServesThePapersClusterEvenly) {
  const Result<PdMapping> mapping =
      PdMapping::Make({.prefill_tp = 32, .decode_tp = 1, .decode_dp = 320});
  ASSERT_TRUE(mapping.ok());
  EXPECT_EQ(mapping->decode_ranks_per_prefill_rank(), 10);
}

TEST(PdMappingTest, RefusesSizesBelowOne) {
  EXPECT_EQ(PdMapping::Make({0, 1, 1}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(PdMapping::Make({1, 0, 1}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(PdMapping::Make({1, 1, 0}).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace ems::pdc
