// What must hold: a hazard of any session counts, and no content of a session page can do harm.
#include "mp_server/reclaim.h"

#include <gtest/gtest.h>

#include <new>

namespace ems::server {
namespace {

class HazardBoardTest : public ::testing::Test {
 protected:
  static shm::SessionPage* AddPage(HazardBoard* board, uint64_t session) {
    auto made = fabric::ShmSegment::CreatePages(shm::kSessionBytes, true);
    EXPECT_TRUE(made.ok()) << made.status();
    auto* page = new (made->bytes().data()) shm::SessionPage;
    board->Add(session, std::make_shared<const fabric::ShmSegment>(*std::move(made)));
    return page;
  }
  HazardBoard board_;
};

TEST_F(HazardBoardTest, NamesCountUntilTheyAreClearedOrTheSessionGoes) {
  EXPECT_FALSE(board_.IsNamed(5));
  shm::SessionPage* one = AddPage(&board_, 1);
  shm::SessionPage* two = AddPage(&board_, 2);
  EXPECT_FALSE(board_.IsNamed(5));
  one->hazard_end = 4;
  one->hazards[3] = 5 << 8 | 0x77;
  two->hazard_end = 1;
  two->hazards[0] = 6 << 8;
  EXPECT_TRUE(board_.IsNamed(5));
  EXPECT_TRUE(board_.IsNamed(6));
  const auto all = board_.Collect();
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].generation, 5u);
  EXPECT_EQ(all[0].session, 1u);
  EXPECT_EQ(all[1].generation, 6u);
  one->hazards[3] = 0;
  EXPECT_FALSE(board_.IsNamed(5));
  board_.Remove(2);
  EXPECT_FALSE(board_.IsNamed(6));
  EXPECT_FALSE(board_.empty());
  board_.Remove(1);
  EXPECT_TRUE(board_.empty());
}

TEST_F(HazardBoardTest, ASlotBeyondTheEndDoesNotCountAndTheEndIsCapped) {
  shm::SessionPage* page = AddPage(&board_, 1);
  page->hazards[10] = 5 << 8;
  EXPECT_FALSE(board_.IsNamed(5));
  page->hazard_end = 0xffffffff;
  EXPECT_TRUE(board_.IsNamed(5));
  for (auto& hazard : page->hazards) hazard = UINT64_MAX;
  EXPECT_EQ(board_.Collect().size(), shm::kHazardsMax);
}

}  // namespace
}  // namespace ems::server
