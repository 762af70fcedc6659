#include "mp_server/memory/segment_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <thread>

#include "tests/mp_server/store/memory_fixture.h"

namespace ems::server {
namespace {

TEST(SegmentPoolTest, FillsItsBudgetHandsOutAllAndThenNothing) {
  SegmentPool pool(SmallPool(8 * kMiB));
  ASSERT_TRUE(pool.WaitReady(8 * kMiB, Soon()).ok());
  std::vector<std::unique_ptr<Segment>> held;
  std::set<uint32_t> ids;
  for (int i = 0; i < 4; ++i) {
    auto segment = pool.Acquire(1);
    ASSERT_TRUE(segment.ok()) << segment.status();
    EXPECT_TRUE(ids.insert((*segment)->id).second);
    held.push_back(std::move(*segment));
  }
  EXPECT_EQ(pool.Acquire(1).status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(pool.stats().bytes_in_use, 8 * kMiB);
  EXPECT_EQ(pool.free_bytes(), 0u);
  for (auto& segment : held) pool.Release(std::move(segment));
  EXPECT_EQ(pool.stats().bytes_in_use, 0u);
}

// No byte of one owner may be seen by the next: a released memfd is closed, and the new one is
// zero.
TEST(SegmentPoolTest, AReleasedSegmentIsNeverHandedOutAgain) {
  SegmentPool pool(SmallPool(2 * kMiB));
  ASSERT_TRUE(pool.WaitReady(2 * kMiB, Soon()).ok());
  auto first = std::move(pool.Acquire(1)).value();
  std::fill(first->memory.bytes().begin(), first->memory.bytes().end(), std::byte{0x5a});
  const uint32_t id = first->id;
  pool.Release(std::move(first));
  ASSERT_TRUE(pool.WaitReady(2 * kMiB, Soon()).ok());
  auto second = std::move(pool.Acquire(1)).value();
  EXPECT_NE(second->id, id);
  for (const std::byte byte : second->memory.bytes()) ASSERT_EQ(byte, std::byte{0});
  pool.Release(std::move(second));
}

TEST(SegmentPoolTest, ALargeSegmentIsMadeOnDemandOutOfReadyOnes) {
  SegmentPool pool(SmallPool(16 * kMiB));
  ASSERT_TRUE(pool.WaitReady(16 * kMiB, Soon()).ok());
  Result<std::unique_ptr<Segment>> large = pool.Acquire(9 * kMiB);
  EXPECT_EQ(large.status().code(), StatusCode::kResourceExhausted);
  const Deadline deadline = Soon();
  while (!large.ok() && !deadline.Passed()) large = pool.Acquire(9 * kMiB);
  ASSERT_TRUE(large.ok()) << large.status();
  EXPECT_EQ((*large)->size_bytes(), 10 * kMiB);
  EXPECT_LE(pool.stats().bytes_created, 16 * kMiB);
  EXPECT_EQ(pool.Acquire(17 * kMiB).status().code(), StatusCode::kOutOfRange);
  pool.Release(std::move(*large));
}

TEST(SegmentPoolTest, ASmallerPoolClosesWhatIsReadyAndSaysWhatIsOwed) {
  SegmentPool pool(SmallPool(16 * kMiB));
  ASSERT_TRUE(pool.WaitReady(16 * kMiB, Soon()).ok());
  std::vector<std::unique_ptr<Segment>> held;
  for (int i = 0; i < 4; ++i) held.push_back(*pool.Acquire(1));
  pool.Resize(6 * kMiB);
  EXPECT_EQ(pool.bytes_max(), 6 * kMiB);
  EXPECT_EQ(pool.excess_bytes(), 2 * kMiB);
  EXPECT_FALSE(pool.Acquire(1).ok());  // also while some are still ready
  EXPECT_EQ(pool.free_bytes(), 0u);
  const Deadline deadline = Soon();
  while (pool.stats().bytes_held > 8 * kMiB && !deadline.Passed()) std::this_thread::yield();
  EXPECT_EQ(pool.stats().bytes_held, 8 * kMiB);
  pool.Release(std::move(held.back()));
  held.pop_back();
  EXPECT_EQ(pool.excess_bytes(), 0u);
  EXPECT_FALSE(pool.Acquire(1).ok());  // it has what it may
  pool.Resize(20 * kMiB);              // more than it began with
  ASSERT_TRUE(pool.WaitReady(20 * kMiB, Soon()).ok());
  for (int i = 0; i < 7; ++i) held.push_back(*pool.Acquire(1));
  EXPECT_FALSE(pool.Acquire(1).ok());
  for (auto& segment : held) pool.Release(std::move(segment));
}

TEST(SegmentPoolTest, WhatClientsKeepIsNotHandedOutAndNobodyIsMadeToWaitForIt) {
  SegmentPool pool(SmallPool(16 * kMiB));
  ASSERT_TRUE(pool.WaitReady(16 * kMiB, Soon()).ok());
  pool.SetKeptByClients(8 * kMiB);
  const Deadline deadline = Soon();
  while (pool.stats().bytes_created > 8 * kMiB && !deadline.Passed()) std::this_thread::yield();
  EXPECT_EQ(pool.stats().bytes_created, 8 * kMiB);
  EXPECT_EQ(pool.free_bytes(), 8 * kMiB);
  // Too large to be had: it must not keep ready segments from others.
  EXPECT_EQ(pool.Acquire(10 * kMiB).status().code(), StatusCode::kResourceExhausted);
  std::vector<std::unique_ptr<Segment>> held;
  for (int i = 0; i < 4; ++i) {
    auto segment = pool.Acquire(1);
    ASSERT_TRUE(segment.ok()) << segment.status();
    held.push_back(std::move(*segment));
  }
  EXPECT_EQ(pool.free_bytes(), 0u);
  pool.SetKeptByClients(0);
  ASSERT_TRUE(pool.WaitReady(16 * kMiB, Soon()).ok());
  for (auto& segment : held) pool.Release(std::move(segment));
}

TEST(SegmentPoolTest, AMachineThatRefusesMakesThePoolSmallerAndIsAskedAgain) {
  std::atomic<int> allowed{2};
  SegmentPool::Options options = SmallPool(8 * kMiB);
  options.retry_after = std::chrono::milliseconds(1);
  options.create = [&](uint64_t bytes, HugePages pages) -> Result<fabric::ShmSegment> {
    if (allowed.fetch_sub(1) <= 0)
      return Error(StatusCode::kResourceExhausted, "no {} today", bytes);
    return fabric::ShmSegment::Create(bytes, pages);
  };
  SegmentPool pool(options);
  EXPECT_TRUE(pool.WaitReady(4 * kMiB, Soon()).ok());
  const Status refused = pool.WaitReady(8 * kMiB, Soon());
  EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted);
  EXPECT_FALSE(pool.growing());
  EXPECT_EQ(pool.stats().bytes_created, 4 * kMiB);
  allowed.store(1000);
  Status healed = refused;
  const Deadline deadline = Soon();
  while (!healed.ok() && !deadline.Passed()) healed = pool.WaitReady(8 * kMiB, deadline);
  EXPECT_TRUE(healed.ok()) << healed;
}

TEST(SegmentPoolTest, DefaultSegmentsHoldLargeBlocksAndLeaveRoomForSevenTenants) {
  EXPECT_EQ(SegmentPool::DefaultSegmentBytes(kGiB), 130 * kMiB);
  EXPECT_EQ(SegmentPool::DefaultSegmentBytes(130 * kGiB), 130 * kMiB);
  EXPECT_EQ(SegmentPool::DefaultSegmentBytes(256 * kMiB), 36 * kMiB);
  EXPECT_EQ(SegmentPool::DefaultSegmentBytes(2 * kMiB), 2 * kMiB);
  for (const uint64_t block : {4 * kMiB, 8 * kMiB, uint64_t{8'994'816}, 16 * kMiB}) {
    const uint64_t pages = SizeClasses::Get().For(block, 64).pages;
    const uint64_t blocks = 130 * kMiB / kPageBytes / pages;
    EXPECT_GE(static_cast<double>(blocks * block), 0.95 * 130 * kMiB) << block;
  }
}

TEST(SegmentPoolTest, NoPoolHasMoreThan1024SegmentsAndLargeObjectsStillFillThem) {
  for (uint64_t pool = 2 * kMiB; pool <= uint64_t{1} << 44; pool += pool / 3 / kMiB * kMiB + kMiB) {
    const uint64_t segment = SegmentPool::DefaultSegmentBytes(pool);
    EXPECT_EQ(segment % (2 * kMiB), 0u) << pool;
    EXPECT_LE((pool + segment - 1) / segment, SegmentPool::kSegmentsMax) << pool;
    EXPECT_GE(pool / segment, pool < 14 * kMiB ? 1 : 7) << pool << ": seven tenants find one each";
    if (segment < 130 * kMiB) continue;
    for (uint64_t block = kMiB; block <= 128 * kMiB; block *= 2) {
      const uint64_t blocks = segment / kPageBytes / SizeClasses::Get().For(block, 64).pages;
      EXPECT_GE(static_cast<double>(blocks * block), 0.95 * static_cast<double>(segment))
          << pool << " " << block;
    }
  }
  EXPECT_EQ(SegmentPool::DefaultSegmentBytes(1024 * kGiB), 1040 * kMiB);
}

TEST(SegmentPoolTest, MissingHugePagesAreNotedAndTheRemainderOfTheBudgetIsUsed) {
  SegmentPool::Options options = SmallPool(6 * kMiB, 4 * kMiB);
  options.huge_pages = HugePages::kTry;
  options.create = [](uint64_t bytes, HugePages) {
    return fabric::ShmSegment::Create(bytes, HugePages::kOff);
  };
  SegmentPool pool(options);
  ASSERT_TRUE(pool.WaitReady(6 * kMiB, Soon()).ok());
  EXPECT_TRUE(pool.stats().fell_back);
  EXPECT_EQ(pool.stats().bytes_ready, 6 * kMiB);
}

}  // namespace
}  // namespace ems::server
