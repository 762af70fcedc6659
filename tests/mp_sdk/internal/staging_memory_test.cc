// What must hold: no byte is in two buffers, what is given back can be handed out again, and where
// a value lies is known exactly.
#include "mp_sdk/internal/staging_memory.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

namespace ems::internal {
namespace {

std::shared_ptr<StagingMemory> Make(uint64_t bytes) { return *StagingMemory::Create(bytes); }

TEST(StagingMemoryTest, BuffersAreAlignedAndApart) {
  const auto memory = Make(64 * kKiB);
  StagingBuffer a = *memory->Allocate(1);
  StagingBuffer b = *memory->Allocate(5000);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(a.bytes().data()) % 4096, 0U);
  EXPECT_EQ(a.bytes().size(), 1U);
  EXPECT_EQ(b.bytes().size(), 5000U);
  EXPECT_EQ(memory->OffsetOf(a.bytes()), 0U);
  EXPECT_EQ(memory->OffsetOf(b.bytes()), 4096U);
  std::memset(b.bytes().data(), 1, b.bytes().size());
}

TEST(StagingMemoryTest, WhatDoesNotFitIsRefusedUntilThereIsRoom) {
  const auto memory = Make(16 * kKiB);
  EXPECT_EQ(memory->Allocate(0).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(memory->Allocate(UINT64_MAX).status().code(), StatusCode::kResourceExhausted);
  StagingBuffer all = *memory->Allocate(16 * kKiB);
  EXPECT_EQ(memory->Allocate(1).status().code(), StatusCode::kResourceExhausted);
  all.Release();
  EXPECT_TRUE(memory->Allocate(16 * kKiB).ok());
}

TEST(StagingMemoryTest, NeighboursCoalesceInAnyOrder) {
  std::vector<int> order = {0, 1, 2, 3};
  do {
    const auto memory = Make(16 * kKiB);
    std::vector<StagingBuffer> parts;
    for (int i = 0; i < 4; ++i) parts.push_back(*memory->Allocate(4 * kKiB));
    for (const int i : order) parts[static_cast<size_t>(i)].Release();
    EXPECT_TRUE(memory->Allocate(16 * kKiB).ok());
  } while (std::ranges::next_permutation(order).found);
}

TEST(StagingMemoryTest, TheShortestRangeThatFitsIsTaken) {
  const auto memory = Make(40 * kKiB);
  StagingBuffer large = *memory->Allocate(12 * kKiB);
  StagingBuffer wall = *memory->Allocate(4 * kKiB);
  StagingBuffer small = *memory->Allocate(8 * kKiB);
  StagingBuffer rest = *memory->Allocate(16 * kKiB);
  large.Release();
  small.Release();
  EXPECT_EQ(memory->OffsetOf(memory->Allocate(8 * kKiB)->bytes()), 16 * kKiB);
}

TEST(StagingMemoryTest, MovesLikeAHandle) {
  const auto memory = Make(8 * kKiB);
  StagingBuffer a = *memory->Allocate(4 * kKiB);
  StagingBuffer b = *memory->Allocate(4 * kKiB);
  b = std::move(a);
  EXPECT_EQ(memory->OffsetOf(b.bytes()), 0U);
  EXPECT_TRUE(a.bytes().empty());  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(memory->OffsetOf(memory->Allocate(4 * kKiB)->bytes()), 4 * kKiB) << "b's old one";
}

TEST(StagingMemoryTest, ABufferOutlivesItsMaker) {
  auto memory = Make(8 * kKiB);
  StagingBuffer buffer = *memory->Allocate(4 * kKiB);
  memory.reset();
  std::memset(buffer.bytes().data(), 1, buffer.bytes().size());
}

TEST(StagingMemoryTest, OnlyValuesThatLieInsideHaveAnOffset) {
  const auto memory = Make(8 * kKiB);
  const MutableBytes all = memory->memory().bytes();
  EXPECT_EQ(memory->OffsetOf(all), 0U);
  EXPECT_EQ(memory->OffsetOf(all.subspan(100, 7)), 100U);
  EXPECT_EQ(memory->OffsetOf({all.data() + 1, all.size()}), std::nullopt);
  EXPECT_EQ(memory->OffsetOf({all.data() - 1, 2}), std::nullopt);
  EXPECT_EQ(memory->OffsetOf({}), std::nullopt);
  std::byte elsewhere{};
  EXPECT_EQ(memory->OffsetOf({&elsewhere, 1}), std::nullopt);
}

TEST(StagingMemoryTest, TheFileCannotChangeItsSize) {
  const auto memory = Make(8 * kKiB);
  const int seals = ::fcntl(memory->memory().fd(), F_GET_SEALS);
  EXPECT_EQ(seals & (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL),
            F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
}

TEST(StagingMemoryTest, RandomUseNeverHandsOutAByteTwice) {
  const uint64_t seed = 7;
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  const auto memory = Make(kMiB);
  struct Held {
    StagingBuffer buffer;
    std::byte mark;
  };
  std::vector<Held> held;
  for (int i = 0; i < 2000; ++i) {
    if (random() % 2 == 0 && !held.empty()) {
      std::swap(held[random() % held.size()], held.back());
      for (const std::byte byte : held.back().buffer.bytes()) ASSERT_EQ(byte, held.back().mark);
      held.pop_back();
      continue;
    }
    Result<StagingBuffer> buffer = memory->Allocate(1 + random() % (64 * kKiB));
    if (!buffer.ok()) continue;
    const auto mark = static_cast<std::byte>(random());
    std::ranges::fill(buffer->bytes(), mark);
    held.push_back({*std::move(buffer), mark});
  }
  held.clear();
  EXPECT_TRUE(memory->Allocate(kMiB).ok()) << "all of it came back";
}

}  // namespace
}  // namespace ems::internal
