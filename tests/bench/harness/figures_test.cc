// What must hold: figures are right at their edges, where there is nothing to divide by, and keep
// the digits that help.
#include "bench/harness/figures.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "common/bytes.h"

namespace ems::bench {
namespace {

TEST(FiguresTest, TimesAreSecondsAndPartsOfThem) {
  const Duration time = std::chrono::microseconds(1500);
  EXPECT_DOUBLE_EQ(Seconds(time), 0.0015);
  EXPECT_DOUBLE_EQ(Millis(time), 1.5);
  EXPECT_DOUBLE_EQ(Micros(time), 1500);
  EXPECT_GE(SecondsSince(Clock::System().Now() - time), 0.0015);
}

TEST(FiguresTest, NothingToDivideByIsZero) {
  EXPECT_EQ(Share(1, 0), 0);
  EXPECT_DOUBLE_EQ(Share(1, 4), 0.25);
  EXPECT_DOUBLE_EQ(Percent(1, 4), 25);
  EXPECT_EQ(Mean({}), 0);
  EXPECT_DOUBLE_EQ(Mean({1, 2, 6}), 3);
  EXPECT_DOUBLE_EQ(GbPerSecond(2'000'000'000, std::chrono::seconds(4)), 0.5);
  EXPECT_EQ(GbPerSecond(1, Duration{0}), 0);
}

TEST(FiguresTest, MediansAreOfSortedValuesAndRatiosOfPairs) {
  EXPECT_EQ(Median({}), 0);
  EXPECT_EQ(Median({3, 1, 2}), 2);
  EXPECT_EQ(Median({4, 1, 2, 3}), 2.5);
  EXPECT_EQ(MedianRatio({2, 9, 4}, {1, 3, 1, 7}), 3);
  EXPECT_DOUBLE_EQ(MedianRatio({10, 2000, 30}, {5, 10, 15}), 2) << "one outlier moves nothing";
  EXPECT_EQ(MedianRatio({1, 2}, {0, 1}), 2) << "a pair without a base is none";
  EXPECT_EQ(MedianRatio({1}, {}), 0);
  EXPECT_EQ(MedianRatio({1, 2}, {0, 0}), 0);
}

TEST(FiguresTest, TextsKeepTheDigitsThatHelp) {
  EXPECT_EQ(FormatGbps(3.417), "3.42 GB/s");
  EXPECT_EQ(FormatGbps(0.01234), "0.0123 GB/s");
  EXPECT_EQ(FormatMs(0.01234), "0.0123");
  EXPECT_EQ(FormatMs(1.2345), "1.234");
  EXPECT_EQ(FormatMs(123.45), "123.5");
  EXPECT_EQ(Fixed(1.5, 2), "1.50");
  EXPECT_EQ(Fixed(std::nan(""), 2), "-");
  EXPECT_EQ(FixedAboveZero(0, 2), "-");
  EXPECT_EQ(FixedAboveZero(0.126, 2), "0.13");
  EXPECT_EQ(PercentText(0.1234), "12.3 %");
  EXPECT_EQ(PercentText(0.1234, 2), "12.34 %");
  EXPECT_EQ(SizeName(64 * kKiB), "64KiB");
  EXPECT_STREQ(Plural(1), "");
  EXPECT_STREQ(Plural(0), "s");
}

TEST(FiguresTest, SizesOutsideTheirBoundsNameTheOption) {
  EXPECT_EQ(ParseSizes("--sizes", {"4KiB", "1MiB"}, 1, kGiB).value(),
            (std::vector<uint64_t>{4 * kKiB, kMiB}));
  for (const char* text : {"big", "0", "2GiB"})
    EXPECT_EQ(ParseSizes("--sizes", {text}, 1, kGiB).status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(
      ToString(ParseSizes("--sizes", {"5KB"}, 4 * kKiB, kMiB, 4 * kKiB).status()),
      ::testing::HasSubstr("--sizes: 5KB is not within 4 KiB and 1 MiB, in steps of 4 KiB"));
}

}  // namespace
}  // namespace ems::bench
