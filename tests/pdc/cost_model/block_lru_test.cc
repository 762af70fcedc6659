// What must hold: leading hits only, exact LRU, and roots outlive leaves.
#include "pdc/cost_model/block_lru.h"

#include <gtest/gtest.h>

#include <vector>

namespace ems::pdc {
namespace {

using Blocks = std::vector<uint64_t>;

TEST(BlockLruTest, CountsLeadingHitsOnly) {
  BlockLru lru(10);
  lru.Insert(Blocks{1, 2, 4});
  EXPECT_EQ(lru.LeadingHits(Blocks{1, 2, 3, 4}), 2U);
  EXPECT_EQ(lru.LeadingHits(Blocks{3, 1}), 0U);
}

TEST(BlockLruTest, DropsLeavesBeforeRoots) {
  BlockLru lru(3);
  lru.Insert(Blocks{1, 2, 3});
  lru.Insert(Blocks{9});
  EXPECT_EQ(lru.size(), 3U);
  EXPECT_EQ(lru.LeadingHits(Blocks{1, 2, 3}), 2U);
}

TEST(BlockLruTest, AHitIsATouch) {
  BlockLru lru(2);
  lru.Insert(Blocks{1});
  lru.Insert(Blocks{2});
  EXPECT_EQ(lru.LeadingHits(Blocks{1}), 1U);
  lru.Insert(Blocks{3});
  EXPECT_EQ(lru.LeadingHits(Blocks{1}), 1U);
  EXPECT_EQ(lru.LeadingHits(Blocks{2}), 0U);
}

TEST(BlockLruTest, WithoutRoomHoldsNothing) {
  BlockLru lru(0);
  lru.Insert(Blocks{1, 2});
  EXPECT_EQ(lru.size(), 0U);
  EXPECT_EQ(lru.LeadingHits(Blocks{1}), 0U);
}

}  // namespace
}  // namespace ems::pdc
