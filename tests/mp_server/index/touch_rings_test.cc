// What must hold: uses arrive once, in their order, as a fair sample when there are many; and no
// content of a session page makes the server take more than it asked for.
#include "mp_server/index/touch_rings.h"

#include <gtest/gtest.h>

#include <array>
#include <new>

namespace ems::server {
namespace {

class TouchRingsTest : public ::testing::Test {
 protected:
  shm::SessionPage* AddPage(uint64_t session) {
    auto made = fabric::ShmSegment::CreatePages(shm::kSessionBytes, true);
    EXPECT_TRUE(made.ok()) << made.status();
    auto* page = new (made->bytes().data()) shm::SessionPage;
    rings_.Add(session, std::make_shared<const fabric::ShmSegment>(*std::move(made)));
    return page;
  }
  // The client's use of hash {number, tag}.
  static void Use(shm::SessionPage* page, uint64_t tag, uint64_t number) {
    const uint64_t at = page->touch_count.load();
    page->touches[at % shm::kTouchesMax].hash_lo = number;
    page->touches[at % shm::kTouchesMax].hash_hi = tag;
    page->touch_count = at + 1;
  }
  std::vector<Hash128> Take(size_t most, size_t sample = 0) {
    std::vector<Hash128> hashes(most);
    hashes.resize(rings_.Take(hashes, sample == 0 ? most : sample).hashes);
    return hashes;
  }
  TouchRings rings_;
};

TEST_F(TouchRingsTest, UsesArriveOnceAndInTheirOrder) {
  EXPECT_TRUE(rings_.empty());
  EXPECT_TRUE(Take(8).empty());
  shm::SessionPage* page = AddPage(1);
  EXPECT_FALSE(rings_.empty());
  for (uint64_t i = 0; i < 5; ++i) Use(page, 1, i);
  const std::vector<Hash128> first = Take(8);
  ASSERT_EQ(first.size(), 5u);
  for (uint64_t i = 0; i < 5; ++i) EXPECT_EQ(first[i], (Hash128{i, 1}));
  EXPECT_TRUE(Take(8).empty());
  Use(page, 1, 77);
  EXPECT_EQ(Take(8), (std::vector<Hash128>{{77, 1}}));
  EXPECT_EQ(rings_.total(), 6u);
  rings_.Remove(1);
  EXPECT_TRUE(rings_.empty());
}

TEST_F(TouchRingsTest, OfManyUsesASampleIsTakenEvenlyOverAll) {
  shm::SessionPage* page = AddPage(1);
  for (uint64_t i = 0; i < 4000; ++i) Use(page, 1, i);
  const std::vector<Hash128> taken = Take(100);
  ASSERT_GE(taken.size(), 50u);
  ASSERT_LE(taken.size(), 100u);
  EXPECT_LT(taken.front().lo, 80u);
  EXPECT_GE(taken.back().lo, 3920u);
  for (size_t i = 1; i < taken.size(); ++i) EXPECT_GT(taken[i].lo, taken[i - 1].lo);
  EXPECT_TRUE(Take(100).empty()) << "what was left out is not taken later";
  EXPECT_EQ(rings_.total(), 4000u);
}

TEST_F(TouchRingsTest, ASampleMayBeSmallerThanWhatIsTakenOtherwise) {
  shm::SessionPage* page = AddPage(1);
  for (uint64_t i = 0; i < 4000; ++i) Use(page, 1, i);
  const std::vector<Hash128> sample = Take(100, 20);
  EXPECT_EQ(sample.size(), 20u);
  EXPECT_GE(sample.back().lo, 3800u);
  for (uint64_t i = 0; i < 90; ++i) Use(page, 1, i);
  EXPECT_EQ(Take(100, 20).size(), 90u) << "there is room for these";
}

TEST_F(TouchRingsTest, WhatHasRoomInTheRingWaitsForItsTurn) {
  shm::SessionPage* page = AddPage(1);
  for (uint64_t i = 0; i < 250; ++i) Use(page, 1, i);
  uint64_t next = 0;
  for (const size_t expected : {100u, 100u, 50u, 0u}) {
    const std::vector<Hash128> taken = Take(100);
    ASSERT_EQ(taken.size(), expected);
    for (const Hash128& hash : taken) EXPECT_EQ(hash.lo, next++);
  }
  EXPECT_EQ(rings_.total(), 250u);
}

TEST_F(TouchRingsTest, SessionsShareAndMoreSessionsThanPlacesTakeTurns) {
  std::array<shm::SessionPage*, 6> pages{};
  for (uint64_t id = 0; id < pages.size(); ++id) {
    pages[id] = AddPage(id);
    for (uint64_t i = 0; i < 100; ++i) Use(pages[id], id, i);
  }
  std::array<size_t, 6> of{};
  for (const Hash128& hash : Take(60)) ++of[hash.hi];
  for (const size_t count : of) EXPECT_EQ(count, 10u);
  for (int round = 0; round < 9; ++round) (void)Take(60);  // the rest
  for (uint64_t id = 0; id < pages.size(); ++id) Use(pages[id], id, 7);
  of = {};
  for (int round = 0; round < 3; ++round) {
    for (const Hash128& hash : Take(2)) ++of[hash.hi];
  }
  for (const size_t count : of) EXPECT_EQ(count, 1u);
}

TEST_F(TouchRingsTest, ACounterOfNonsenseIsBounded) {
  shm::SessionPage* page = AddPage(1);
  for (const uint64_t count : {UINT64_MAX, uint64_t{0}, uint64_t{1} << 63, uint64_t{5}}) {
    page->touch_count = count;
    EXPECT_LE(Take(64).size(), 64u) << count;
  }
  EXPECT_LE(rings_.total(), 4 * uint64_t{shm::kTouchesMax});
}

}  // namespace
}  // namespace ems::server
