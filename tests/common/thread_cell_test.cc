// What must hold: threads that live have cells of their own, those that find none share one, and
// no count is lost either way.
#include "common/thread_cell.h"

#include <gtest/gtest.h>

#include <array>
#include <barrier>
#include <set>
#include <vector>

#include "common/guarded.h"
#include "common/thread_pool.h"

namespace ems {
namespace {

// The cells of `count` threads that live at the same time.
std::vector<size_t> CellsOf(size_t count) {
  Guarded<std::vector<size_t>> cells;
  std::barrier together(static_cast<std::ptrdiff_t>(count));
  std::vector<Thread> threads;
  threads.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    threads.emplace_back("cell", [&] {
      const size_t mine = ThreadCell();
      EXPECT_EQ(ThreadCell(), mine) << "it stays";
      {
        auto all = cells.Lock();
        all->push_back(mine);
      }
      together.arrive_and_wait();
    });
  }
  threads.clear();
  auto all = cells.Lock();
  return *all;
}

TEST(ThreadCellTest, ThreadsThatLiveHaveCellsOfTheirOwn) {
  const std::vector<size_t> cells = CellsOf(20);
  EXPECT_EQ(std::set<size_t>(cells.begin(), cells.end()).size(), 20u);
}

TEST(ThreadCellTest, CellsOfEndedThreadsAreUsedAgain) {
  for (int round = 0; round < 10; ++round) {
    for (const size_t cell : CellsOf(20)) EXPECT_LT(cell, 30u) << round;
  }
}

TEST(ThreadCellTest, ThreadsBeyondTheCellsShareOneAndNoCountIsLost) {
  constexpr size_t kThreads = 2 * kThreadCells;
  constexpr uint64_t kEach = 5000;
  std::array<std::atomic<uint64_t>, kThreadCells> words{};
  std::barrier together(static_cast<std::ptrdiff_t>(kThreads));
  std::vector<Thread> threads;
  threads.reserve(kThreads);
  for (size_t i = 0; i < kThreads; ++i) {
    threads.emplace_back("cell", [&] {
      const size_t cell = ThreadCell();
      together.arrive_and_wait();
      for (uint64_t n = 0; n < kEach; ++n) AddInCell(cell, &words[cell], 1);
    });
  }
  threads.clear();
  uint64_t sum = 0;
  for (const std::atomic<uint64_t>& word : words) sum += word.load();
  EXPECT_EQ(sum, kThreads * kEach);
  EXPECT_GT(words[kSharedCell].load(), kEach);
}

}  // namespace
}  // namespace ems
