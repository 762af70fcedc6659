// What must hold: each block is with one reader at a time and done once, however often it misses
// and whichever way it goes; readers wait for work and are released at the end.
#include "ems_model/internal/block_queue.h"

#include <gtest/gtest.h>

#include "common/thread_pool.h"

namespace ems::model::internal {
namespace {

using std::chrono::seconds;

Manifest MakeBlocks(size_t count, uint64_t bytes) {
  Manifest manifest;
  manifest.files.push_back({.path = "f", .bytes = count * bytes, .tag = "t"});
  for (size_t i = 0; i < count; ++i)
    manifest.blocks.push_back({.file = 0, .offset = i * bytes, .bytes = bytes, .route = {}});
  return manifest;
}

std::vector<uint32_t> AllOf(const Manifest& manifest) {
  std::vector<uint32_t> all(manifest.blocks.size());
  for (uint32_t i = 0; i < all.size(); ++i) all[i] = i;
  return all;
}

TEST(BlockQueueTest, KnownBlocksComeInOrderAndInBatches) {
  const Manifest manifest = MakeBlocks(5, 100);
  BlockQueue queue(manifest, AllOf(manifest));
  EXPECT_EQ(queue.state().unknown, 5U);
  queue.Learn(std::vector<uint32_t>{3, 1, 4});
  EXPECT_EQ(queue.state().unknown, 2U);
  EXPECT_EQ(queue.Take(250).blocks, (std::vector<uint32_t>{3, 1}));
  EXPECT_EQ(queue.Take(10).blocks, (std::vector<uint32_t>{4})) << "larger than a batch: alone";
}

TEST(BlockQueueTest, OfWhatIsReadyATaskTakesAShareSoThatReadersEndTogether) {
  const Manifest manifest = MakeBlocks(16, 100);
  BlockQueue queue(manifest, AllOf(manifest), 8);
  queue.Learn(AllOf(manifest));
  std::vector<size_t> sizes;
  while (queue.state().left > 0) {
    const BlockQueue::Task task = queue.Take(400);
    sizes.push_back(task.blocks.size());
    for (const uint32_t block : task.blocks) queue.Done(block, true);
  }
  EXPECT_EQ(sizes.front(), 2U);
  EXPECT_EQ(sizes.size(), 15U) << "one by one from then on";
}

TEST(BlockQueueTest, WhatWasMissedComesInWholeBatches) {
  const Manifest manifest = MakeBlocks(4, 100);
  BlockQueue queue(manifest, AllOf(manifest), 8);
  queue.Learn(AllOf(manifest));
  for (uint32_t i = 0; i < 4; ++i) queue.Missed(queue.Take(400).blocks.at(0), Miss());
  queue.AskAgain();
  EXPECT_EQ(queue.Take(400).blocks.size(), 4U);
}

TEST(BlockQueueTest, UnwantedBlocksNeverCome) {
  const Manifest manifest = MakeBlocks(5, 100);
  BlockQueue queue(manifest, std::vector<uint32_t>{2});
  queue.Learn(AllOf(manifest));
  EXPECT_EQ(queue.Take(10'000).blocks, (std::vector<uint32_t>{2}));
  queue.Done(2, true);
  EXPECT_TRUE(queue.state().over());
  EXPECT_EQ(queue.state().arrivals, 1U);
  EXPECT_TRUE(queue.Take(10'000).blocks.empty());
}

TEST(BlockQueueTest, AFailureStopsWhatIsBeingRead) {
  const Manifest manifest = MakeBlocks(2, 100);
  const auto failed = std::make_shared<StopFlag>();
  BlockQueue queue(manifest, AllOf(manifest), 1, failed);
  queue.Learn(AllOf(manifest));
  (void)queue.Take(1000);
  queue.Done(0, true);
  EXPECT_FALSE(failed->IsSet());
  queue.Fail(Miss());
  EXPECT_TRUE(failed->IsSet());
}

TEST(BlockQueueTest, WhatMissedIsAskedForAgainLaterAndLater) {
  const Manifest manifest = MakeBlocks(1, 100);
  BlockQueue queue(manifest, AllOf(manifest));
  queue.Learn(AllOf(manifest));
  Duration waited{0};
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(queue.Take(1000).blocks.size(), 1U);
    queue.Missed(0, Miss());
    EXPECT_EQ(queue.state().missing, 1U);
    const TimePoint begin = Clock::System().Now();
    ASSERT_EQ(queue.Take(1000).blocks.size(), 1U);
    waited = Clock::System().Now() - begin;
    queue.Missed(0, Error(StatusCode::kUnavailable, "x"));
  }
  EXPECT_GE(waited, std::chrono::milliseconds(50));
  EXPECT_EQ(queue.state().trouble.code(), StatusCode::kUnavailable);
  EXPECT_EQ(queue.WaitForNews(seconds(10)).missing, 1U);
}

TEST(BlockQueueTest, WhatIsAskedForAgainIsKnownWhenItHasBeen) {
  const Manifest manifest = MakeBlocks(2, 100);
  BlockQueue queue(manifest, AllOf(manifest));
  queue.Learn(AllOf(manifest));
  ASSERT_EQ(queue.Take(1000).blocks.size(), 2U);
  for (int i = 0; i < 10; ++i) {  // from now on it would wait for long
    queue.Missed(0, Miss());
    if (i < 9) {
      ASSERT_EQ(queue.Take(100).blocks, (std::vector<uint32_t>{0}));
    }
  }
  EXPECT_TRUE(queue.AskedAgain()) << "nobody wants it to be";
  queue.AskAgain();
  EXPECT_FALSE(queue.AskedAgain());
  EXPECT_EQ(queue.Take(100).blocks, (std::vector<uint32_t>{0})) << "at once";
  EXPECT_FALSE(queue.AskedAgain()) << "the other one was being read before";
  queue.Done(1, true);
  EXPECT_TRUE(queue.AskedAgain());
  queue.Missed(0, Miss());
  EXPECT_TRUE(queue.AskedAgain());
}

TEST(BlockQueueTest, WaitingBlocksCanGoTheOtherWay) {
  const Manifest manifest = MakeBlocks(4, 100);
  BlockQueue queue(manifest, AllOf(manifest));
  queue.Learn(std::vector<uint32_t>{0, 1});
  ASSERT_EQ(queue.Take(100).blocks, (std::vector<uint32_t>{0}));
  queue.Missed(0, Miss());
  queue.GoDirect();
  EXPECT_EQ(queue.state().waiting(), 0U);
  EXPECT_FALSE(queue.Take(100).direct) << "block 1 is to be had from the pool";
  std::vector<std::pair<uint32_t, bool>> direct;
  for (int i = 0; i < 3; ++i) {
    const BlockQueue::Task task = queue.Take(1000);
    ASSERT_TRUE(task.direct);
    ASSERT_EQ(task.blocks.size(), 1U);
    direct.emplace_back(task.blocks[0], task.known);
  }
  EXPECT_EQ(direct, (std::vector<std::pair<uint32_t, bool>>{{0, true}, {2, false}, {3, false}}));
  queue.MakeDirect(1);
  EXPECT_TRUE(queue.Take(1000).direct);
}

TEST(BlockQueueTest, ASourceThatDoesNotAnswerIsAskedAgainLaterAndForOtherBlocksFirst) {
  const Manifest manifest = MakeBlocks(2, 100);
  BlockQueue queue(manifest, AllOf(manifest));
  queue.GoDirect();
  EXPECT_EQ(queue.state().direct, 2U);
  ASSERT_EQ(queue.Take(1000).blocks, (std::vector<uint32_t>{0}));
  const TimePoint begin = Clock::System().Now();
  queue.SourceFailed(0, Error(StatusCode::kUnavailable, "away"), seconds(60));
  EXPECT_EQ(queue.state().direct, 2U);
  EXPECT_EQ(queue.Take(1000).blocks, (std::vector<uint32_t>{1}));
  EXPECT_GE(Clock::System().Now() - begin, BlockQueue::kSourceRetryFirst);
  EXPECT_EQ(queue.state().source_trouble.code(), StatusCode::kUnavailable);
  queue.Done(1, false);
  EXPECT_TRUE(queue.state().source_trouble.ok());
  ASSERT_EQ(queue.Take(1000).blocks, (std::vector<uint32_t>{0}));
  queue.SourceFailed(0, Error(StatusCode::kUnavailable, "away for good"), Duration(0));
  EXPECT_EQ(queue.state().error, Error(StatusCode::kUnavailable, "away for good"));
}

TEST(BlockQueueTest, WhatOthersHaveBroughtInIsAskedForBeforeTheSourceIsRead) {
  const Manifest manifest = MakeBlocks(3, 100);
  BlockQueue queue(manifest, AllOf(manifest));
  queue.GoDirect();
  queue.Learn(std::vector<uint32_t>{2});
  BlockQueue::Task task = queue.Take(1000);
  EXPECT_EQ(task.blocks, (std::vector<uint32_t>{2}));
  EXPECT_TRUE(task.direct && task.known && task.ask);
  queue.MakeDirect(2);  // it is something else
  task = queue.Take(1000);
  EXPECT_EQ(task.blocks, (std::vector<uint32_t>{0}));
  EXPECT_TRUE(task.direct && !task.known && !task.ask);
  ASSERT_EQ(queue.Take(1000).blocks, (std::vector<uint32_t>{1}));
  task = queue.Take(1000);
  EXPECT_EQ(task.blocks, (std::vector<uint32_t>{2}));
  EXPECT_TRUE(task.direct && task.known && !task.ask);
}

TEST(BlockQueueTest, AnErrorReleasesReadersAndTheFirstOneCounts) {
  const Manifest manifest = MakeBlocks(1, 100);
  BlockQueue queue(manifest, AllOf(manifest));
  Thread reader("reader", [&] { EXPECT_TRUE(queue.Take(1000).blocks.empty()); });
  queue.Fail(Error(StatusCode::kAborted, "first"));
  queue.Fail(Error(StatusCode::kAborted, "second"));
  reader.Join();
  EXPECT_EQ(queue.WaitForNews(seconds(10)).error, Error(StatusCode::kAborted, "first"));
}

TEST(BlockQueueTest, TimeWithoutReadersIsCounted) {
  const Manifest manifest = MakeBlocks(2, 100);
  BlockQueue queue(manifest, AllOf(manifest));
  queue.Learn(std::vector<uint32_t>{0});
  ASSERT_EQ(queue.Take(1000).blocks.size(), 1U);
  const Duration before = queue.idle();
  queue.Missed(0, Miss());
  ASSERT_EQ(queue.Take(1000).blocks.size(), 1U);
  EXPECT_GE(queue.idle() - before, BlockQueue::kRetryFirst / 2);
}

TEST(BlockQueueTest, ManyReadersDoEachBlockOnce) {
  const Manifest manifest = MakeBlocks(2000, 100);
  BlockQueue queue(manifest, AllOf(manifest));
  std::vector<std::atomic<int>> done(2000);
  {
    std::vector<Thread> readers;
    readers.reserve(8);
    for (int r = 0; r < 4; ++r) {
      readers.emplace_back("reader", [&, r] {
        for (int round = 0;; ++round) {
          const BlockQueue::Task task = queue.Take(700);
          if (task.blocks.empty()) return;
          for (const uint32_t block : task.blocks) {
            if (!task.direct && (block + static_cast<uint32_t>(round + r)) % 5 == 0) {
              queue.Missed(block, Miss());
            } else {
              done[block].fetch_add(1);
              queue.Done(block, !task.direct);
            }
          }
        }
      });
    }
    queue.Learn(AllOf(manifest));
    while (!queue.WaitForNews(seconds(1)).over()) queue.GoDirect();
  }
  for (const auto& count : done) EXPECT_EQ(count.load(), 1);
}

}  // namespace
}  // namespace ems::model::internal
