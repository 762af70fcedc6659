// What must hold: memory that is laid out as it was before has every object where it lay, hands out
// what is free and nothing else, and refuses what does not fit together.
#include "mp_server/memory/slab_placement.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "proto/shm_layout.h"
#include "tests/mp_server/store/memory_fixture.h"

namespace ems::server {
namespace {

class SlabPlacementTest : public ::testing::Test {
 protected:
  static std::unique_ptr<Segment> MakeSegment(uint32_t id = 1, uint64_t bytes = 4 * kMiB) {
    auto segment = std::make_unique<Segment>();
    segment->id = id;
    auto made = fabric::ShmSegment::Create(bytes, HugePages::kOff);
    EXPECT_TRUE(made.ok()) << made.status();
    segment->memory = *std::move(made);
    return segment;
  }
};

uint64_t ValueBytes(int i) {
  constexpr uint64_t kBytes[] = {100, 3000, 40'000, 100'000, 400'000};
  return kBytes[i % 5];
}

TEST_F(SlabPlacementTest, LaysOutAsItWasAndHandsOutTheRest) {
  SlabPool before;
  before.Add(MakeSegment());
  std::vector<std::unique_ptr<ObjectEntry>> owners;
  for (int i = 0; i < 25; ++i) {
    auto owner = std::make_unique<ObjectEntry>();
    if (before.Allocate(SizeClasses::Get().For(ValueBytes(i), 8), false, owner.get()))
      owners.push_back(std::move(owner));
  }
  ASSERT_GT(owners.size(), 10u);
  for (size_t i = 0; i < owners.size(); i += 3) {  // holes
    (void)before.Free(owners[i].get());
    owners[i].reset();
  }
  std::erase(owners, nullptr);
  SlabPlacement old(&before);
  std::map<SlabPlacement::Laid, std::vector<const ObjectEntry*>> runs;
  for (const auto& owner : owners) runs[old.RunOf(*owner)].push_back(owner.get());

  SlabPool after;
  after.Add(MakeSegment());
  SlabPlacement placement(&after);
  std::vector<std::unique_ptr<ObjectEntry>> again;
  std::vector<PageRuns::Page*> placed;
  for (const auto& [laid, objects] : runs) {
    PageRuns::Page* const run = placement.Place(laid);
    ASSERT_NE(run, nullptr);
    placed.push_back(run);
    for (const ObjectEntry* one : objects) {
      again.push_back(std::make_unique<ObjectEntry>());
      const uint64_t offset = shm::OffsetOf(one->location);
      ASSERT_TRUE(placement.PlaceIn(run, offset, again.back().get()));
      EXPECT_EQ(again.back()->location, one->location);
      EXPECT_EQ(again.back()->size_class, one->size_class);
      ObjectEntry twin;
      EXPECT_FALSE(placement.PlaceIn(run, offset, &twin));
      EXPECT_FALSE(placement.PlaceIn(run, offset + 64, &twin));
    }
  }
  for (PageRuns::Page* run : placed) placement.Settle(run);
  EXPECT_EQ(after.stats().chunk_bytes, before.stats().chunk_bytes);
  // All that is free is handed out, once, and nothing that is taken.
  std::set<uint64_t> heads;
  for (const auto& owner : again) EXPECT_TRUE(heads.insert(owner->location).second);
  for (int i = 0; i < 5; ++i) {
    while (true) {
      auto owner = std::make_unique<ObjectEntry>();
      if (!after.Allocate(SizeClasses::Get().For(ValueBytes(i), 8), true, owner.get())) break;
      EXPECT_TRUE(heads.insert(owner->location).second);
      again.push_back(std::move(owner));
    }
  }
  for (const auto& owner : again) (void)after.Free(owner.get());
  EXPECT_EQ(after.stats().chunk_bytes, 0u);
  EXPECT_EQ(after.TakeEmpty(0).size(), 1u);
  for (const auto& owner : owners) (void)before.Free(owner.get());
}

TEST_F(SlabPlacementTest, WhatDoesNotFitIsRefused) {
  SlabPool pool;
  pool.Add(MakeSegment());
  SlabPlacement placement(&pool);
  EXPECT_EQ(placement.Place({.segment = 2, .pages = 1}), nullptr);
  EXPECT_EQ(placement.Place({.segment = 1, .first_page = 0, .pages = 257}), nullptr);
  EXPECT_EQ(placement.Place({.segment = 1, .first_page = 256, .pages = 1}), nullptr);
  EXPECT_EQ(placement.Place({.segment = 1, .pages = 1, .chunks = 100'000, .size_class = 1}),
            nullptr);
  ASSERT_NE(placement.Place({.segment = 1, .first_page = 10, .pages = 30}), nullptr);
  EXPECT_EQ(placement.Place({.segment = 1, .first_page = 39, .pages = 2}), nullptr);  // overlap
  EXPECT_EQ(placement.Place({.segment = 1, .first_page = 0, .pages = 2}),
            nullptr);  // not ascending
}

TEST_F(SlabPlacementTest, RunsThatNobodyOwnsAreFreeInTheEnd) {
  SlabPool pool;
  pool.Add(MakeSegment());
  SlabPlacement placement(&pool);
  const SizeClass& shape = SizeClasses::Get().at(0);
  std::vector<PageRuns::Page*> placed = {
      placement.Place({.segment = 1, .first_page = 4, .pages = 30}),
      placement.Place({.segment = 1,
                       .first_page = 40,
                       .pages = shape.slab_pages_short,
                       .chunks = SizeClasses::ChunksIn(shape, shape.slab_pages_short),
                       .size_class = 0})};
  for (PageRuns::Page* run : placed) {
    ASSERT_NE(run, nullptr);
    placement.Settle(run);
  }
  EXPECT_EQ(pool.SupplyOf({}, 0).free_pages, 256u);
  EXPECT_EQ(pool.SupplyOf({}, 0).idle_bytes, 0u);
  EXPECT_EQ(pool.TakeEmpty(0).size(), 1u);
}

}  // namespace
}  // namespace ems::server
