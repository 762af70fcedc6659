#include "mp_server/memory/window_search.h"

#include <gtest/gtest.h>

#include <deque>

#include "tests/mp_server/store/memory_fixture.h"

namespace ems::server {
namespace {

constexpr Ages kAges{0, 1000};

// One segment of 128 pages, laid out by hand.
class WindowSearchTest : public ::testing::Test {
 protected:
  WindowSearchTest() {
    auto segment = std::make_unique<Segment>();
    segment->memory = std::move(fabric::ShmSegment::Create(2 * kMiB, HugePages::kOff)).value();
    runs_.Add(std::move(segment));
  }
  // The next `pages` pages become an object that was touched at `touched_ns`.
  PageRuns::Page* Place(uint32_t pages, int64_t touched_ns) {
    PageRuns::Page* run = runs_.Allocate(pages, RunKind::kObject);
    ObjectEntry& entry = entries_.emplace_back();
    entry.holds.store(kLinked);
    entry.value_bytes = pages * kPageBytes;
    entry.touched_ns.store(touched_ns);
    run->owner = &entry;
    return run;
  }
  static ObjectEntry& EntryOf(PageRuns::Page* run) {
    return *static_cast<ObjectEntry*>(run->owner);
  }
  Window Find(uint32_t pages) { return search_.Find(runs_, slabs_, pages, kAges); }

  PageRuns runs_;
  std::deque<ObjectEntry> entries_;
  std::vector<std::unique_ptr<Slab>> slabs_;
  WindowSearch search_;
};

TEST_F(WindowSearchTest, TakesTheColderNeighbourOfAFreeRun) {
  PageRuns::Page* cold = Place(10, 100);
  PageRuns::Page* gone = Place(10, 0);
  Place(10, 900);
  Place(98, 1000);
  runs_.Free(gone);
  const Window window = Find(20);
  EXPECT_EQ(window.first, cold);
  EXPECT_EQ(window.last, gone);
  EXPECT_LT(window.loss, 0.01) << "a tenth of the way from the coldest to now";
}

TEST_F(WindowSearchTest, ManyOldObjectsGoBeforeOneYoungOne) {
  PageRuns::Page* first_old = Place(5, 50);
  for (int i = 0; i < 3; ++i) Place(5, 100);
  PageRuns::Page* gone = Place(20, 0);
  Place(20, 1000);
  Place(68, 1000);
  runs_.Free(gone);
  const Window window = Find(40);
  EXPECT_EQ(window.first, first_old);
  EXPECT_EQ(window.last, gone);
}

TEST_F(WindowSearchTest, TheYoungAreSparedAlsoAmongOldOnesInASlab) {
  PageRuns::Page* run = runs_.Allocate(16, RunKind::kSlab);
  PageRuns::Page* rest = Place(112, 750);
  slabs_.push_back(std::make_unique<Slab>());
  Slab& slab = *slabs_.back();
  slab.run = run;
  run->owner = &slab;
  for (int i = 0; i < 40; ++i) {
    ObjectEntry& entry = entries_.emplace_back();
    entry.holds.store(kLinked);
    entry.touched_ns.store(i == 7 ? 750 : 0);  // the samples miss it
    slab.owners.push_back(&entry);
  }
  Ages ages = kAges;
  EXPECT_EQ(search_.Find(runs_, slabs_, 16, ages).first, run);
  ages.spared_from_ns = 750;
  EXPECT_EQ(search_.Find(runs_, slabs_, 16, ages).first, nullptr);
  ages.spared_from_ns = 751;
  EXPECT_EQ(search_.Find(runs_, slabs_, 16, ages).first, run);
  EXPECT_EQ(EntryOf(rest).touched_ns.load(), 750);
}

TEST_F(WindowSearchTest, WhatIsHeldIsNeverInAWindow) {
  PageRuns::Page* cold = Place(10, 0);
  PageRuns::Page* gone = Place(10, 0);
  PageRuns::Page* warm = Place(10, 900);
  PageRuns::Page* rest = Place(98, 900);
  runs_.Free(gone);
  EntryOf(cold).holds.fetch_add(1);
  const Window window = Find(20);
  EXPECT_EQ(window.first, gone);
  EXPECT_EQ(window.last, warm);
  EntryOf(warm).holds.fetch_add(1);
  EXPECT_EQ(Find(20).first, nullptr);
  EntryOf(warm).holds.fetch_sub(1);
  EXPECT_EQ(Find(119).first, nullptr) << "118 pages are not held";
  EXPECT_EQ(Find(118).last, rest);
}

TEST_F(WindowSearchTest, ASlabIsASeedAndItsPinsBlockIt) {
  PageRuns::Page* run = runs_.Allocate(16, RunKind::kSlab);
  Place(112, 1000);
  slabs_.push_back(std::make_unique<Slab>());
  Slab& slab = *slabs_.back();
  slab.run = run;
  run->owner = &slab;
  slab.owners.assign(8, nullptr);
  for (uint32_t i = 1; i < 8; ++i) slab.free.push_back(i);
  ObjectEntry& entry = entries_.emplace_back();
  entry.holds.store(kLinked);
  slab.owners[0] = &entry;
  EXPECT_EQ(Find(16).first, run);
  entry.holds.fetch_add(1);
  EXPECT_EQ(Find(16).first, nullptr);
  entry.holds.fetch_sub(1);
  slab.draining = true;
  EXPECT_EQ(Find(16).first, nullptr) << "it is being emptied for another caller";
}

TEST_F(WindowSearchTest, NothingFreeAndNoSlabIsNoWindow) {
  Place(128, 0);
  EXPECT_EQ(Find(1).first, nullptr);
}

}  // namespace
}  // namespace ems::server
