#include "model_files/source/bandwidth_cap.h"

#include <gtest/gtest.h>

namespace ems::model {
namespace {

using std::chrono::milliseconds;

TEST(BandwidthCapTest, WithoutARateNothingWaits) {
  ManualClock clock;
  BandwidthCap cap(0, &clock);
  EXPECT_FALSE(cap.limits());
  EXPECT_EQ(cap.Reserve(uint64_t{1} << 60), Duration::zero());
  EXPECT_EQ(cap.Reserve(1), Duration::zero());
}

TEST(BandwidthCapTest, APieceWaitsUntilThoseBeforeItAreOver) {
  ManualClock clock;
  BandwidthCap cap(1000, &clock);  // a byte a millisecond, a burst of 50
  EXPECT_EQ(cap.Reserve(50), Duration::zero());
  EXPECT_EQ(cap.Reserve(10), Duration::zero());  // what came before is over just now
  EXPECT_EQ(cap.Reserve(30), milliseconds(10));
  EXPECT_EQ(cap.Reserve(1), milliseconds(40));
  clock.Advance(milliseconds(30));
  EXPECT_EQ(cap.Reserve(1), milliseconds(11));
}

TEST(BandwidthCapTest, APauseSavesUpNoMoreThanTheBurst) {
  ManualClock clock;
  BandwidthCap cap(1000, &clock);
  clock.Advance(std::chrono::hours(1));
  EXPECT_EQ(cap.Reserve(50), Duration::zero());
  EXPECT_EQ(cap.Reserve(100), Duration::zero());
  EXPECT_EQ(cap.Reserve(1), milliseconds(100));
}

TEST(BandwidthCapTest, OverALongTimeTheRateHolds) {
  ManualClock clock;
  BandwidthCap cap(1'000'000, &clock);
  const TimePoint begin = clock.Now();
  for (int i = 0; i < 1000; ++i) clock.Advance(cap.Reserve(1000));
  const Duration took = clock.Now() - begin;
  EXPECT_GE(took, milliseconds(1000) - BandwidthCap::kBurst - milliseconds(1));
  EXPECT_LE(took, milliseconds(1000));
}

TEST(BandwidthCapTest, ATinyRateAndAHugePieceDoNotOverflow) {
  ManualClock clock;
  BandwidthCap cap(1, &clock);
  EXPECT_EQ(cap.Reserve(uint64_t{1} << 63), Duration::zero());
  for (int i = 0; i < 10; ++i) {
    const Duration wait = cap.Reserve(uint64_t{1} << 63);
    EXPECT_GT(wait, std::chrono::hours(23));
    EXPECT_LE(wait, Deadline::kMost);
  }
}

}  // namespace
}  // namespace ems::model
