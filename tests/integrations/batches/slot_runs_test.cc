#include "integrations/batches/slot_runs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

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

TEST(SlotRunsTest, BlocksAreWholePagesOrAreNamed) {
  std::array<std::byte, 400> memory;
  const auto layer = [&](size_t at, uint32_t group, uint32_t tokens) {
    context::KvTensor tensor;
    tensor.data = memory.data() + at;
    tensor.bytes = 100;
    tensor.dtype = *context::ParseDtype("uint8");
    tensor.blocks = 100 / tokens;
    tensor.block_tokens = tokens;
    tensor.heads = 1;
    tensor.head_size = 1;
    return context::KvLayer{{tensor}, group};
  };
  const auto layout = context::KvLayout::Make({layer(0, 0, 10), layer(100, 1, 20)});
  ASSERT_TRUE(layout.ok()) << layout.status();
  const auto check = [&](const std::vector<SlotRun>& runs, const std::vector<size_t>& ends,
                         bool one_each) {
    return CheckPages(*layout, ends.size() / 2, runs, ends, one_each).ToString();
  };
  EXPECT_THAT(check({{30, 10}, {40, 20}}, {1, 2}, true), HasSubstr("OK"));
  EXPECT_THAT(check({{30, 20}, {40, 20}}, {1, 2}, false), HasSubstr("OK"));
  EXPECT_THAT(check({{30, 10}, {10, 10}, {40, 20}}, {2, 3}, false), HasSubstr("OK"));
  EXPECT_THAT(check({{30, 20}, {40, 20}}, {1, 2}, true), HasSubstr("one whole page of 10 tokens"));
  EXPECT_THAT(check({{30, 10}, {10, 10}, {40, 20}}, {2, 3}, true), HasSubstr("one whole page"));
  EXPECT_THAT(check({{30, 10}, {50, 20}}, {1, 2}, false),
              HasSubstr("block 0 has 20 tokens from slot 50 on"));
  EXPECT_THAT(check({{30, 10}, {50, 15}}, {1, 2}, false), HasSubstr("whole pages of 20 tokens"));
  EXPECT_THAT(check({{30, 10}, {0, 5}, {40, 20}, {0, 20}}, {1, 2, 3, 4}, false),
              HasSubstr("block 1 has 5 tokens"));
}

}  // namespace
}  // namespace ems::batches
