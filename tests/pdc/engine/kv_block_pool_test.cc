// What must hold: blocks are taken all or none, shared by count, and come back once the last holder
// releases them, also under many threads.
#include "pdc/engine/kv_block_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <set>

#include "common/thread_pool.h"

namespace ems::pdc {
namespace {

TEST(KvBlockPoolTest, TakesAllOrNone) {
  KvBlockPool pool(5);
  const auto three = pool.Allocate(3);
  ASSERT_TRUE(three.ok());
  EXPECT_EQ(std::set<BlockId>(three->begin(), three->end()).size(), 3U);
  EXPECT_EQ(pool.Allocate(3).status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(pool.free_blocks(), 2U);
  EXPECT_TRUE(pool.Allocate(0)->empty());
  EXPECT_TRUE(pool.Allocate(2).ok());
  EXPECT_EQ(pool.free_blocks(), 0U);
}

TEST(KvBlockPoolTest, TheLastHolderFreesABlock) {
  KvBlockPool pool(1);
  const BlockId block = pool.Allocate(1)->front();
  pool.Share(block);
  EXPECT_EQ(pool.holders(block), 2U);
  pool.Release(block);
  EXPECT_EQ(pool.free_blocks(), 0U);
  pool.Release(block);
  EXPECT_EQ(pool.holders(block), 0U);
  EXPECT_EQ(pool.Allocate(1)->front(), block);
}

TEST(BlockPoolDeathTest, ReleasingTwiceIsABug) {
  KvBlockPool pool(2);
  const BlockId block = pool.Allocate(1)->front();
  pool.Release(block);
  EXPECT_DEATH(pool.Release(block), "not held");
  EXPECT_DEATH(pool.Share(block), "not held");
  EXPECT_DEATH(pool.Release(2), "not held");
}

TEST(KvBlockPoolTest, ThreadsNeverHoldTheSameBlock) {
  KvBlockPool pool(64);
  std::vector<std::atomic<int>> owners(64);
  std::atomic<int> clashes{0};
  {
    std::vector<Thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back("taker", [&] {
        for (int i = 0; i < 2000; ++i) {
          const auto blocks = pool.Allocate(7);
          if (!blocks.ok()) continue;
          for (const BlockId block : *blocks)
            if (owners[block].fetch_add(1) != 0) ++clashes;
          for (const BlockId block : *blocks) {
            owners[block].fetch_sub(1);
            pool.Release(block);
          }
        }
      });
    }
  }
  EXPECT_EQ(clashes.load(), 0);
  EXPECT_EQ(pool.free_blocks(), 64U);
}

}  // namespace
}  // namespace ems::pdc
