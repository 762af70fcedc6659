#include "mp_server/memory/page_runs.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "tests/mp_server/store/memory_fixture.h"

namespace ems::server {
namespace {

class PageRunsTest : public ::testing::Test {
 protected:
  void AddSegments(int count) {
    for (int i = 0; i < count; ++i) {
      auto segment = std::make_unique<Segment>();
      segment->id = static_cast<uint32_t>(i) + 1;
      segment->memory = std::move(fabric::ShmSegment::Create(2 * kMiB, HugePages::kOff)).value();
      runs_.Add(std::move(segment));
    }
  }
  // Walks all segments: lengths add up, and no two free runs are neighbours.
  void CheckTags() {
    uint64_t free_pages = 0;
    for (const auto& segment : runs_.segments()) {
      uint64_t pages = 0;
      bool was_free = false;
      for (auto* run = PageRuns::FirstRun(segment.get()); run != nullptr;
           run = PageRuns::NextRun(run)) {
        const bool is_free = run->kind == RunKind::kFree;
        ASSERT_FALSE(is_free && was_free) << "two free neighbours";
        was_free = is_free;
        pages += run->run_pages;
        if (is_free) free_pages += run->run_pages;
      }
      ASSERT_EQ(pages, segment->pages.size());
    }
    ASSERT_EQ(free_pages, runs_.free_pages());
  }
  PageRuns runs_;
};

TEST_F(PageRunsTest, TakesTheSmallestThatFitsAndCoalescesOnBothSides) {
  AddSegments(1);  // 128 pages
  auto* a = runs_.Allocate(10, RunKind::kObject);
  auto* b = runs_.Allocate(20, RunKind::kObject);
  auto* c = runs_.Allocate(5, RunKind::kObject);
  auto* d = runs_.Allocate(30, RunKind::kObject);
  runs_.Free(a);
  runs_.Free(c);
  EXPECT_EQ(runs_.Allocate(4, RunKind::kObject), c) << "5 free pages fit better than 10";
  EXPECT_EQ(runs_.Allocate(128, RunKind::kObject), nullptr);
  runs_.Free(c);
  runs_.Free(b);
  EXPECT_EQ(runs_.Allocate(35, RunKind::kObject), a) << "10 + 20 + 5 pages are one run";
  runs_.Free(a);
  runs_.Free(d);
  CheckTags();
  EXPECT_EQ(runs_.Allocate(128, RunKind::kObject), a);
}

TEST_F(PageRunsTest, HasSaysWhatAllocateWouldFind) {
  AddSegments(1);  // 128 pages
  EXPECT_TRUE(runs_.Has(128));
  EXPECT_FALSE(runs_.Has(129));
  auto* run = runs_.Allocate(30, RunKind::kObject);
  EXPECT_TRUE(runs_.Has(98));
  EXPECT_FALSE(runs_.Has(99));
  EXPECT_EQ(PageRuns::PrevRun(run), nullptr);
  EXPECT_EQ(PageRuns::PrevRun(PageRuns::NextRun(run)), run);
  runs_.Drain(run->segment);
  EXPECT_FALSE(runs_.Has(1));
  EXPECT_EQ(runs_.pages(), 0u);
}

TEST_F(PageRunsTest, LongestFreeListsLongRunsFirst) {
  AddSegments(3);
  auto* long_run = runs_.Allocate(20, RunKind::kObject);
  runs_.Allocate(108, RunKind::kObject);
  auto* short_run = runs_.Allocate(2, RunKind::kObject);
  runs_.Allocate(126, RunKind::kObject);
  runs_.Allocate(128, RunKind::kObject);
  runs_.Free(long_run);
  runs_.Free(short_run);
  std::vector<PageRuns::Page*> found;
  runs_.LongestFree(16, &found);
  EXPECT_EQ(found, (std::vector<PageRuns::Page*>{long_run, short_run}));
  found.clear();
  runs_.LongestFree(1, &found);
  EXPECT_EQ(found, std::vector<PageRuns::Page*>{long_run});
}

TEST_F(PageRunsTest, RandomRunsNeverOverlapAndAllComeBack) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  AddSegments(3);
  std::map<std::byte*, PageRuns::Page*> taken;
  for (int i = 0; i < 5000; ++i) {
    const auto pages = static_cast<uint32_t>(1 + random() % (i % 7 == 0 ? 90 : 9));
    auto* run = random() % 5 == 0 ? runs_.AllocateLongest(pages, RunKind::kSlab)
                                  : runs_.Allocate(pages, RunKind::kObject);
    if (run != nullptr) {
      const auto [it, added] = taken.emplace(runs_.Address(run), run);
      ASSERT_TRUE(added);
      if (it != taken.begin()) {
        const auto before = std::prev(it);
        if (before->second->segment == run->segment) {
          ASSERT_LE(before->first + before->second->run_pages * kPageBytes, it->first);
        }
      }
      if (run->run_pages > 3 && random() % 4 == 0) runs_.Trim(run, run->run_pages - 1);
    }
    if ((run == nullptr || random() % 2 == 0) && !taken.empty()) {
      auto it = std::next(taken.begin(), static_cast<long>(random() % taken.size()));
      runs_.Free(it->second);
      taken.erase(it);
    }
    if (i % 500 == 0) CheckTags();
  }
  for (auto& [address, run] : taken) runs_.Free(run);
  CheckTags();
  EXPECT_EQ(runs_.free_pages(), 3u * 128);
}

TEST_F(PageRunsTest, ADrainingSegmentHandsNothingOutAndCanBeTakenWhenEmpty) {
  AddSegments(1);
  auto* run = runs_.Allocate(8, RunKind::kObject);
  auto* segment = run->segment;
  runs_.Drain(segment);
  EXPECT_EQ(runs_.Allocate(1, RunKind::kObject), nullptr);
  EXPECT_FALSE(segment->empty());
  runs_.Free(run);
  ASSERT_TRUE(segment->empty());
  EXPECT_EQ(runs_.Take(segment)->id, 1u);
  EXPECT_TRUE(runs_.segments().empty());
}

TEST_F(PageRunsTest, FreeingTwiceIsABug) {
  AddSegments(1);
  auto* run = runs_.Allocate(8, RunKind::kObject);
  runs_.Free(run);
  EXPECT_DEATH(runs_.Free(run), "freed twice");
}

}  // namespace
}  // namespace ems::server
