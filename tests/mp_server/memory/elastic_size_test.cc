// What must hold: what others need is given up at once and once; the pool grows only when there has
// been room for a while; it stays between its bounds.
#include "mp_server/memory/elastic_size.h"

#include <gtest/gtest.h>

#include "common/bytes.h"

namespace ems::server {
namespace {

using std::chrono::milliseconds;

constexpr uint64_t kStep = 128 * kMiB;
constexpr ElasticOptions kOptions{.bytes_min = kGiB,
                                  .keep_free_bytes = kGiB,
                                  .step_bytes = kStep,
                                  .grow_after = std::chrono::seconds(10)};

class ElasticSizeTest : public ::testing::Test {
 protected:
  // The size after a look at a machine that has `available` left, and a pool that has its size.
  uint64_t Look(uint64_t available, milliseconds later = milliseconds(50)) {
    return Look(available, bytes_, later);
  }
  uint64_t Look(uint64_t available, uint64_t held, milliseconds later = milliseconds(50)) {
    now_ += later;
    bytes_ = size_.Next(
        {.available_bytes = available, .limit_bytes = 64 * kGiB, .stalled_us = stalled_us_},
        {.bytes = bytes_, .bytes_held = held, .bytes_most = 8 * kGiB}, now_);
    return bytes_;
  }

  ElasticSize size_{kOptions};
  TimePoint now_ = TimePoint{} + std::chrono::hours(1);
  uint64_t bytes_ = 8 * kGiB;
  uint64_t stalled_us_ = 0;
};

TEST_F(ElasticSizeTest, WhatOthersNeedIsGivenUpAtOnceInWholeSegments) {
  EXPECT_EQ(Look(2 * kGiB), 8 * kGiB);
  EXPECT_EQ(Look(kGiB), 8 * kGiB);
  EXPECT_EQ(Look(kGiB - 1), 8 * kGiB - kStep);
}

TEST_F(ElasticSizeTest, WhatIsOnItsWayIsNotGivenUpTwice) {
  EXPECT_EQ(Look(512 * kMiB), 7 * kGiB + 512 * kMiB);
  EXPECT_EQ(Look(512 * kMiB, 8 * kGiB, milliseconds(100)), 7 * kGiB + 512 * kMiB);
  EXPECT_EQ(Look(256 * kMiB, 8 * kGiB, milliseconds(100)), 7 * kGiB + 256 * kMiB);
}

// Objects that are in use hold their segments: others have to go.
TEST_F(ElasticSizeTest, WhatDoesNotComeBackWithinASecondIsNotCountedOn) {
  EXPECT_EQ(Look(512 * kMiB), 7 * kGiB + 512 * kMiB);
  EXPECT_EQ(Look(512 * kMiB, 8 * kGiB, milliseconds(999)), 7 * kGiB + 512 * kMiB);
  EXPECT_EQ(Look(512 * kMiB, 8 * kGiB, milliseconds(2)), 7 * kGiB);
}

// A client that unmaps what has gone takes some milliseconds.
TEST_F(ElasticSizeTest, BetweenTwoShrinksThereIsTimeToUnmap) {
  EXPECT_EQ(Look(512 * kMiB), 7 * kGiB + 512 * kMiB);
  EXPECT_EQ(Look(512 * kMiB), 7 * kGiB + 512 * kMiB);  // given back, and not to be seen yet
  EXPECT_EQ(Look(512 * kMiB), 7 * kGiB);
}

TEST_F(ElasticSizeTest, NeverBelowTheLeastNorAboveTheMost) {
  EXPECT_EQ(Look(0), 7 * kGiB);
  for (int i = 0; i < 20; ++i) Look(0, milliseconds(2000));
  EXPECT_EQ(bytes_, kGiB);
  for (int i = 0; i < 100; ++i) Look(40 * kGiB, milliseconds(2000));
  EXPECT_EQ(bytes_, 8 * kGiB);
}

TEST_F(ElasticSizeTest, GrowsWhenThereHasBeenRoomForAWhile) {
  bytes_ = 2 * kGiB;
  EXPECT_EQ(Look(3 * kGiB), 2 * kGiB);
  EXPECT_EQ(Look(3 * kGiB, milliseconds(9999)), 2 * kGiB);
  EXPECT_EQ(Look(3 * kGiB, milliseconds(1)), 3 * kGiB);  // half of what is above keep_free_bytes
  EXPECT_EQ(Look(3 * kGiB, milliseconds(999)), 3 * kGiB);
  EXPECT_EQ(Look(3 * kGiB, milliseconds(1)), 4 * kGiB);
  Look(kGiB + kStep);  // little is left: the while begins anew
  EXPECT_EQ(Look(3 * kGiB), 4 * kGiB);
  EXPECT_EQ(Look(3 * kGiB, milliseconds(9999)), 4 * kGiB);
}

// What the pool has not made yet is promised already.
TEST_F(ElasticSizeTest, WhatItIsStillToTakeIsNotFree) {
  bytes_ = 4 * kGiB;
  EXPECT_EQ(Look(3 * kGiB, 2 * kGiB), 4 * kGiB);
  EXPECT_EQ(Look(3 * kGiB, 2 * kGiB, milliseconds(20000)), 4 * kGiB);
  EXPECT_EQ(Look(2 * kGiB, 2 * kGiB, milliseconds(2000)), 3 * kGiB);
}

TEST_F(ElasticSizeTest, TasksThatWaitForMemoryAreAReasonWhereLittleIsLeft) {
  Look(3 * kGiB / 2);
  stalled_us_ += 4900;  // of 50 ms
  EXPECT_EQ(Look(3 * kGiB / 2), 8 * kGiB);
  stalled_us_ += 5100;
  EXPECT_EQ(Look(3 * kGiB / 2), 8 * kGiB - kStep);
  stalled_us_ += 50000;  // of others, whose own limit is in the way
  EXPECT_EQ(Look(4 * kGiB, milliseconds(200)), 8 * kGiB - kStep);
}

TEST_F(ElasticSizeTest, BeginsWithWhatThereIsRoomFor) {
  EXPECT_EQ(size_.First({.available_bytes = 5 * kGiB}, 8 * kGiB), 4 * kGiB);
  EXPECT_EQ(size_.First({.available_bytes = 5 * kMiB}, 8 * kGiB), kGiB);
  EXPECT_EQ(size_.First({.available_bytes = 50 * kGiB}, 8 * kGiB), 8 * kGiB);
}

}  // namespace
}  // namespace ems::server
