// What must hold: a hazard of any session counts, and no content of a session page can do harm.
#include "mp_server/index/reclaim.h"

#include <gtest/gtest.h>

#include <array>
#include <new>
#include <vector>

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
  const auto all = board_.Naming(std::array<uint64_t, 4>{4, 5, 6, 4096 + 5});
  ASSERT_EQ(all.size(), 2u) << "4096 + 5 falls on the bit of 5";
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
  EXPECT_EQ(board_.Naming(std::array{UINT64_MAX >> 8}).size(), shm::kHazardsMax);
  EXPECT_TRUE(board_.Naming(std::array{UINT64_MAX >> 9}).empty());
}

TEST_F(HazardBoardTest, ALookIsCostlyWhenMoreThanOneSessionHasUsedAllItsHazards) {
  shm::SessionPage* one = AddPage(&board_, 1);
  one->hazard_end = 0xffffffff;
  EXPECT_FALSE(board_.IsNamed(5));
  EXPECT_FALSE(board_.costly()) << "a client that lies";
  AddPage(&board_, 2)->hazard_end = 1;
  EXPECT_FALSE(board_.IsNamed(5));
  EXPECT_TRUE(board_.costly());
  board_.Remove(2);
  EXPECT_FALSE(board_.costly());
}

TEST_F(HazardBoardTest, NamingFindsWhatIsThereAmongMany) {
  std::vector<shm::SessionPage*> pages;
  for (uint64_t session = 1; session <= 5; ++session) pages.push_back(AddPage(&board_, session));
  for (uint32_t i = 0; i < shm::kHazardsMax; ++i)
    for (size_t p = 0; p < pages.size(); ++p)
      pages[p]->hazards[i] = (i * pages.size() + p + 1) * 3 << 8;
  for (shm::SessionPage* page : pages) page->hazard_end = shm::kHazardsMax;
  std::vector<uint64_t> asked;
  for (uint64_t g = 1; g <= 20'000; g += 7) asked.push_back(g);
  std::vector<uint64_t> found, expected;
  for (const auto& hazard : board_.Naming(asked)) found.push_back(hazard.generation);
  for (const uint64_t g : asked)
    if (g % 3 == 0 && g / 3 <= pages.size() * shm::kHazardsMax) expected.push_back(g);
  EXPECT_EQ(found, expected);
}

}  // namespace
}  // namespace ems::server
