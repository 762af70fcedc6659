// What must hold: what a client has counted is taken over once, and no content of its page makes
// the server count more than reads can be made.
#include "mp_server/shm/read_cells.h"

#include <gtest/gtest.h>

#include <memory>

namespace ems::server {
namespace {

class ReadCellsTest : public ::testing::Test {
 protected:
  static constexpr std::chrono::milliseconds kElapsed{100};
  LookupCounts Take() { return cells_.Take(*page_, kElapsed); }
  shm::ReadCell& Cell(size_t i) { return page_->read_cells[i]; }

  std::unique_ptr<shm::SessionPage> page_ = std::make_unique<shm::SessionPage>();
  ReadCells cells_;
};

TEST_F(ReadCellsTest, CountsOfAllCellsAreTakenOnce) {
  EXPECT_EQ(Take().hits, 0u);
  page_->read_cell_end = 3;
  Cell(0).hits = 5;
  Cell(0).misses = 6;
  Cell(0).bytes = 7000;
  Cell(2).hits = 10;
  Cell(2).found = 8;
  Cell(2).absent = 9;
  const LookupCounts first = Take();
  EXPECT_EQ(first.hits, 15u);
  EXPECT_EQ(first.misses, 6u);
  EXPECT_EQ(first.bytes, 7000u);
  EXPECT_EQ(first.found, 8u);
  EXPECT_EQ(first.absent, 9u);
  Cell(2).hits = 12;
  EXPECT_EQ(Take().hits, 2u);
  EXPECT_EQ(Take().hits, 0u);
}

TEST_F(ReadCellsTest, CellsAboveTheEndDoNotCountYet) {
  page_->read_cell_end = 1;
  Cell(1).hits = 5;
  EXPECT_EQ(Take().hits, 0u);
  page_->read_cell_end = 2;
  EXPECT_EQ(Take().hits, 5u);
}

TEST_F(ReadCellsTest, AnEndBeyondThePageIsThatOfThePage) {
  page_->read_cell_end = UINT32_MAX;
  Cell(shm::kReadCells - 1).hits = 1;
  EXPECT_EQ(Take().hits, 1u);
}

TEST_F(ReadCellsTest, ACountThatGoesBackCountsNothing) {
  page_->read_cell_end = 1;
  Cell(0).hits = 1000;
  EXPECT_EQ(Take().hits, 1000u);
  Cell(0).hits = 10;
  EXPECT_EQ(Take().hits, 0u);
  Cell(0).hits = 11;
  EXPECT_EQ(Take().hits, 1u) << "it goes on from there";
}

TEST_F(ReadCellsTest, NonsenseCountsAsMuchAsReadsCanBe) {
  page_->read_cell_end = UINT32_MAX;
  for (const uint64_t nonsense : {UINT64_MAX, uint64_t{1} << 63, UINT64_MAX, uint64_t{0}}) {
    for (size_t i = 0; i < shm::kReadCells; ++i) {
      Cell(i).hits = nonsense;
      Cell(i).bytes = nonsense;
    }
    const LookupCounts taken = Take();
    EXPECT_LE(taken.hits, uint64_t{100} * shm::kReadCells * ReadCells::kReadsMax) << nonsense;
    EXPECT_LE(taken.bytes, uint64_t{100} * shm::kReadCells * ReadCells::kBytesMax) << nonsense;
  }
}

TEST_F(ReadCellsTest, NoLookBelievesMoreThanOneOfTenSeconds) {
  page_->read_cell_end = 1;
  Cell(0).hits = UINT64_MAX;
  const LookupCounts taken = cells_.Take(*page_, std::chrono::hours(1000));
  EXPECT_EQ(taken.hits, 10'000 * ReadCells::kReadsMax);
}

}  // namespace
}  // namespace ems::server
