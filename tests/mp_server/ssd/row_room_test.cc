// What must hold: a Put waits for the index to be merged for a moment only, what has no room is
// shed, and a region goes when there are too many rows or merging does not help.
#include "mp_server/ssd/row_room.h"

#include <gtest/gtest.h>

namespace ems::ssd {
namespace {

using Answer = RowRoom::Answer;

class RowRoomTest : public ::testing::Test {
 protected:
  ManualClock clock_;
  uint64_t objects_ = 0;
  bool has_room_ = true;
  RowRoom room_{{.objects = [this] { return objects_; },
                 .objects_max = 10,
                 .has_room = [this] { return has_room_; },
                 .clock = &clock_}};
};

TEST_F(RowRoomTest, ARegionGoesForTheRowBeyondTheMost) {
  objects_ = 9;
  EXPECT_EQ(room_.Ask(), Answer::kNow);
  objects_ = 10;
  EXPECT_EQ(room_.Ask(), Answer::kReclaim);
}

TEST_F(RowRoomTest, APutWaitsForAMomentAndIsShedThen) {
  has_room_ = false;
  EXPECT_EQ(room_.Ask(), Answer::kSoon);
  clock_.Advance(RowRoom::kMergePatience / 2);
  EXPECT_EQ(room_.Ask(), Answer::kSoon);
  clock_.Advance(RowRoom::kMergePatience / 2);
  EXPECT_EQ(room_.Ask(), Answer::kNone);
  has_room_ = true;
  EXPECT_EQ(room_.Ask(), Answer::kNow);
  has_room_ = false;
  EXPECT_EQ(room_.Ask(), Answer::kSoon) << "another time";
}

TEST_F(RowRoomTest, WhereMergingDoesNotHelpARegionGoesNowAndThen) {
  has_room_ = false;
  EXPECT_EQ(room_.Ask(), Answer::kSoon);
  for (int i = 0; i < 2; ++i) {
    clock_.Advance(RowRoom::kMergeLongest);
    EXPECT_EQ(room_.Ask(), Answer::kReclaim);
    EXPECT_EQ(room_.Ask(), Answer::kNone) << "one at a time";
  }
}

}  // namespace
}  // namespace ems::ssd
