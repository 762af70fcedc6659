// What must hold: a sequence has the blocks its tokens need and gives all of them back; a fork
// shares whole blocks, copies the last, and neither writes what is shared.
#include "pdc/engine/kv_sequence.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>

namespace ems::pdc {
namespace {

struct Arena {
  Arena()
      : memory(KvArena::BlockBytes(config, options) * 6),
        arena(*KvArena::Create(config, options, memory)) {}
  uint32_t unused() { return arena->pool().free_blocks(); }
  ModelConfig config;
  KvOptions options{.block_tokens = 4};
  std::vector<std::byte> memory;
  std::unique_ptr<KvArena> arena;
};

TEST(KvSequenceTest, ReservesGivesBackAndMoves) {
  Arena a;
  {
    KvSequence kv(a.arena.get());
    ASSERT_TRUE(kv.Reserve(9).ok());
    EXPECT_EQ(kv.blocks().size(), 3U);
    EXPECT_EQ(kv.capacity(), 12U);
    EXPECT_EQ(kv.Reserve(25).code(), StatusCode::kResourceExhausted);
    EXPECT_EQ(kv.blocks().size(), 3U);
    EXPECT_EQ(kv.SetTokens(13).code(), StatusCode::kOutOfRange);
    ASSERT_TRUE(kv.SetTokens(5).ok());
    KvSequence moved(std::move(kv));
    EXPECT_EQ(moved.tokens(), 5U);
    KvSequence other(a.arena.get());
    ASSERT_TRUE(other.Reserve(1).ok());
    other = std::move(moved);
    EXPECT_EQ(a.unused(), 3U);
    EXPECT_EQ(other.tokens(), 5U);
  }
  EXPECT_EQ(a.unused(), 6U);
}

TEST(KvSequenceTest, RunsEndWithTheirBlocks) {
  Arena a;
  KvSequence kv(a.arena.get());
  ASSERT_TRUE(kv.Reserve(12).ok());
  const auto runs = kv.Runs(3, 6);
  ASSERT_TRUE(runs.ok());
  const auto slot = [&](size_t block, uint32_t row) { return kv.blocks()[block] * 4 + row; };
  EXPECT_EQ(*runs,
            (std::vector<context::SlotRun>{{slot(0, 3), 1}, {slot(1, 0), 4}, {slot(2, 0), 1}}));
  EXPECT_EQ(kv.Runs(3, 10).status().code(), StatusCode::kOutOfRange);
}

TEST(KvSequenceTest, AForkSharesWholeBlocksAndCopiesTheLast) {
  Arena a;
  KvSequence kv(a.arena.get());
  ASSERT_TRUE(kv.Reserve(10).ok());
  ASSERT_TRUE(kv.SetTokens(6).ok());
  a.arena->block(kv.blocks()[1])[5] = std::byte{7};
  auto fork = kv.Fork();
  ASSERT_TRUE(fork.ok()) << fork.status();
  EXPECT_EQ(fork->tokens(), 6U);
  EXPECT_EQ(fork->blocks()[0], kv.blocks()[0]);
  EXPECT_NE(fork->blocks()[1], kv.blocks()[1]);
  EXPECT_EQ(a.arena->block(fork->blocks()[1])[5], std::byte{7});
  EXPECT_EQ(a.unused(), 2U);
  EXPECT_TRUE(fork->CheckWritable(4, 4).ok());
  EXPECT_EQ(fork->CheckWritable(3, 1).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(kv.CheckWritable(0, 5).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(kv.CheckWritable(8, 5).code(), StatusCode::kOutOfRange);
  kv.Clear();
  EXPECT_TRUE(fork->CheckWritable(3, 1).ok());
  EXPECT_EQ(a.unused(), 4U);
}

TEST(KvSequenceTest, AForkWithoutRoomChangesNothing) {
  Arena a;
  KvSequence kv(a.arena.get());
  ASSERT_TRUE(kv.Reserve(24).ok());
  ASSERT_TRUE(kv.SetTokens(23).ok());
  EXPECT_EQ(kv.Fork().status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(a.arena->pool().holders(kv.blocks()[0]), 1U);
}

}  // namespace
}  // namespace ems::pdc
