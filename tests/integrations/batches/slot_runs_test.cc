#include "integrations/batches/slot_runs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ems::batches {
namespace {

using context::SlotRun;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Of a layout of 100 slots.
struct Built {
  std::vector<SlotRun> runs;
  std::vector<size_t> run_ends;
  Status status;
};
Built Build(const std::vector<int64_t>& lengths, const std::vector<int64_t>& slots,
            size_t piece = 1000) {
  Built built;
  SlotRunBuilder builder(100, lengths, &built.runs, &built.run_ends);
  std::span<const int64_t> left = slots;
  while (built.status.ok() && !left.empty()) {
    const auto part = left.first(std::min(piece, left.size()));
    built.status = builder.Add(part);
    left = left.subspan(part.size());
  }
  if (built.status.ok()) built.status = builder.Finish();
  return built;
}

TEST(SlotRunsTest, FollowingSlotsOfABlockAreARunInPiecesOfAnySize) {
  const std::vector<int64_t> slots = {4,  5,  6,  7,  40, 41, 42, 9,  10, 11, 12, 13, 14, 15,
                                      16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28};
  for (const size_t piece : {1, 2, 7, 16, 1000}) {
    const Built built = Build({6, 21}, slots, piece);
    ASSERT_EQ(built.status, OkStatus()) << piece;
    EXPECT_THAT(built.runs,
                ElementsAre(SlotRun{4, 4}, SlotRun{40, 2}, SlotRun{42, 1}, SlotRun{9, 20}));
    EXPECT_THAT(built.run_ends, ElementsAre(2, 4));
  }
}

TEST(SlotRunsTest, LengthsAndSlotsMustAgree) {
  EXPECT_THAT(Build({2}, {1, 2, 3}).status.ToString(), HasSubstr("there are more slots"));
  EXPECT_THAT(Build({2, 2}, {1, 2, 3}).status.ToString(), HasSubstr("more than the 3 slots"));
  EXPECT_THAT(Build({2, 1}, {1, 2}).status.ToString(), HasSubstr("more than the 2 slots"));
  EXPECT_THAT(Build({1}, {}).status.ToString(), HasSubstr("empty"));
  EXPECT_THAT(Build({0, 1}, {1}).status.ToString(), HasSubstr("0 tokens"));
  EXPECT_THAT(Build({-3}, {1}).status.ToString(), HasSubstr("-3 tokens"));
}

TEST(SlotRunsTest, SlotsOutsideOfTheLayoutAreNamed) {
  EXPECT_THAT(Build({1}, {-1}).status.ToString(), HasSubstr("slot -1 is not in 0 to 99"));
  EXPECT_THAT(Build({1}, {100}).status.ToString(), HasSubstr("slot 100 is not in 0 to 99"));
  EXPECT_THAT(Build({3}, {98, 99, 100}).status.ToString(), HasSubstr("3 slots from 98 on"));
  EXPECT_EQ(CheckRun(100, 90, 10), OkStatus());
  EXPECT_EQ(CheckRun(100, 90, 11).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(CheckRun(100, 0, 0).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(CheckRun(100, INT64_MAX, INT64_MAX).code(), StatusCode::kInvalidArgument);
}

TEST(SlotRunsTest, ASlotInTwoRunsIsNamedWithItsBlocks) {
  const std::vector<SlotRun> apart = {{10, 5}, {0, 10}, {15, 1}};
  const std::vector<size_t> ends = {1, 2, 3};
  EXPECT_EQ(CheckOnce(3, apart, ends), OkStatus());
  const std::vector<SlotRun> met = {{10, 5}, {0, 11}, {15, 1}};
  const Status status = CheckOnce(3, met, ends);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.ToString(),
              HasSubstr("slot 10 is to be written by block 1 and again by block 0"));
}

TEST(SlotRunsTest, GroupsHaveSlotsOfTheirOwn) {
  const std::vector<SlotRun> runs = {{0, 4}, {4, 4}, {0, 4}, {4, 4}};
  const std::vector<size_t> ends = {1, 2, 3, 4};
  EXPECT_EQ(CheckOnce(2, runs, ends), OkStatus());
  EXPECT_NE(CheckOnce(4, runs, ends), OkStatus());
  EXPECT_EQ(CheckOnce(0, {}, {}), OkStatus());
}

}  // namespace
}  // namespace ems::batches
