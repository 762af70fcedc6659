// What must hold: no byte is in two buffers, what is given back can be handed out again, and where
// a value lies is known exactly.
#include "mp_sdk/internal/staging_memory.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <cstring>
#include <random>
#include <vector>

#include "common/thread_pool.h"

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

uint64_t PagesBytes(const StagingMemory& memory) {
  struct stat info {};
  EXPECT_EQ(::fstat(memory.memory().fd(), &info), 0);
  return static_cast<uint64_t>(info.st_blocks) * 512;
}

TEST(StagingMemoryTest, PagesAreMadeAsTheyAreNeeded) {
  const auto memory = Make(64 * kMiB);
  EXPECT_EQ(memory->made_bytes(), 0U);
  StagingBuffer first = *memory->Allocate(kMiB);
  EXPECT_EQ(memory->made_bytes(), 2 * kMiB);
  StagingBuffer second = *memory->Allocate(kMiB);
  EXPECT_EQ(memory->made_bytes(), 2 * kMiB) << "there was room";
  StagingBuffer third = *memory->Allocate(5 * kMiB);
  EXPECT_EQ(memory->made_bytes(), 8 * kMiB);
  EXPECT_EQ(PagesBytes(*memory), 8 * kMiB);
  third.Release();
  EXPECT_EQ(memory->made_bytes(), 8 * kMiB) << "servers rely on it";
  StagingBuffer fourth = *memory->Allocate(8 * kMiB);
  EXPECT_EQ(memory->made_bytes(), 10 * kMiB) << "what is free at the end counts";
  EXPECT_FALSE(memory->Allocate(63 * kMiB).ok());
  EXPECT_EQ(memory->made_bytes(), 10 * kMiB) << "nothing is made for what cannot fit";
}

TEST(StagingMemoryTest, WhatIsWantedIsMadeStepByStep) {
  const auto memory = Make(64 * kMiB);
  while (memory->wants_more()) ASSERT_TRUE(memory->MakeMore(4 * kMiB).ok());
  EXPECT_EQ(memory->made_bytes(), StagingMemory::kFirstBytes);
  EXPECT_EQ(PagesBytes(*memory), StagingMemory::kFirstBytes);
  memory->Want(kMiB);
  EXPECT_FALSE(memory->wants_more()) << "there is room";
  memory->Want(65 * kMiB);
  EXPECT_FALSE(memory->wants_more()) << "there never is";
  memory->Want(20 * kMiB);
  ASSERT_TRUE(memory->wants_more());
  ASSERT_TRUE(memory->MakeMore(2 * kMiB).ok());
  EXPECT_EQ(memory->made_bytes(), 18 * kMiB);
  ASSERT_TRUE(memory->MakeMore(4 * kMiB).ok());
  EXPECT_EQ(memory->made_bytes(), 20 * kMiB);
  EXPECT_FALSE(memory->wants_more());
  EXPECT_FALSE(memory->AllocateBelow(UINT64_MAX, 20 * kMiB).bytes().empty());
}

TEST(StagingMemoryTest, ABufferCanBeAskedForBelowAnEnd) {
  const auto memory = Make(8 * kMiB);
  EXPECT_TRUE(memory->AllocateBelow(UINT64_MAX, 1).bytes().empty()) << "nothing is made for it";
  while (memory->wants_more()) ASSERT_TRUE(memory->MakeMore(8 * kMiB).ok());
  StagingBuffer low = *memory->Allocate(4 * kMiB);
  EXPECT_TRUE(memory->AllocateBelow(4 * kMiB, 1).bytes().empty());
  EXPECT_TRUE(memory->AllocateBelow(5 * kMiB, 2 * kMiB).bytes().empty());
  StagingBuffer high = memory->AllocateBelow(5 * kMiB, kMiB);
  EXPECT_EQ(memory->OffsetOf(high.bytes()), 4 * kMiB);
  low.Release();
  StagingBuffer again = memory->AllocateBelow(4 * kMiB, kMiB);
  EXPECT_EQ(memory->OffsetOf(again.bytes()), 0U) << "though a shorter range lies behind";
}

TEST(StagingMemoryTest, ThreadsThatNeedMoreEachGetTheirs) {
  const auto memory = Make(64 * kMiB);
  std::atomic<int> refused{0};
  std::vector<Thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back("user", [&] {
      std::vector<StagingBuffer> held;
      for (int n = 0; n < 4; ++n) {
        Result<StagingBuffer> buffer = memory->Allocate(4 * kMiB);
        if (buffer.ok()) held.push_back(*std::move(buffer));
      }
      refused += 4 - static_cast<int>(held.size());
    });
  }
  threads.clear();
  EXPECT_EQ(refused, 0) << "all together it is what there is";
  EXPECT_TRUE(memory->Allocate(memory->made_bytes()).ok()) << "all of it came back";
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
