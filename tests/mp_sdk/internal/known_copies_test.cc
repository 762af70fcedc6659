// What must hold: what was learnt is known until its time is over, or it is forgotten, and nothing
// is known of any other key.
#include "mp_sdk/internal/known_copies.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "common/hash.h"

namespace ems::internal {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

uint64_t HashOf(const std::string& key) { return Hash64(AsBytes(key)); }

class KnownCopiesTest : public ::testing::Test {
 protected:
  const std::unique_ptr<KnownCopies> copies_ = std::make_unique<KnownCopies>();
  TimePoint now_{seconds(1000)};
};

TEST_F(KnownCopiesTest, AreKnownUntilTheirTimeIsOver) {
  EXPECT_FALSE(copies_->any());
  copies_->Learn(HashOf("hot"), {.holders = 5, .seconds = 10}, now_);
  EXPECT_TRUE(copies_->any());
  EXPECT_EQ(copies_->Of(HashOf("hot"), now_), 5);
  EXPECT_EQ(copies_->Of(HashOf("hot"), now_ + milliseconds(9'999)), 5);
  EXPECT_EQ(copies_->Of(HashOf("hot"), now_ + seconds(10)), 0);
  EXPECT_EQ(copies_->Of(HashOf("hot"), now_ + std::chrono::hours(24 * 40)), 0);
}

TEST_F(KnownCopiesTest, ANewerWordReplacesTheOneBefore) {
  copies_->Learn(HashOf("hot"), {.holders = 5, .seconds = 10}, now_);
  copies_->Learn(HashOf("hot"), {.holders = 2, .seconds = 20}, now_);
  EXPECT_EQ(copies_->Of(HashOf("hot"), now_ + seconds(15)), 2);
}

TEST_F(KnownCopiesTest, OtherKeysAreNotKnown) {
  copies_->Learn(HashOf("hot"), {.holders = 7, .seconds = 30}, now_);
  for (int i = 0; i < 100'000; ++i) EXPECT_EQ(copies_->Of(HashOf(std::to_string(i)), now_), 0) << i;
}

TEST_F(KnownCopiesTest, WhatIsForgottenIsNotKnownAndOthersStay) {
  // Of one place.
  const uint64_t hot = HashOf("hot"), same_place = hot ^ uint64_t { 1 } << 60;
  copies_->Learn(hot, {.holders = 7, .seconds = 30}, now_);
  copies_->Forget(same_place);
  EXPECT_EQ(copies_->Of(hot, now_), 7);
  copies_->Forget(hot);
  EXPECT_EQ(copies_->Of(hot, now_), 0);
}

TEST_F(KnownCopiesTest, TimesAreRightWhereTheClockOfMillisecondsBeginsAnew) {
  const TimePoint late{milliseconds((uint64_t{1} << 32) - 500)};
  copies_->Learn(HashOf("hot"), {.holders = 7, .seconds = 30}, late);
  EXPECT_EQ(copies_->Of(HashOf("hot"), late + seconds(29)), 7);
  EXPECT_EQ(copies_->Of(HashOf("hot"), late + seconds(30)), 0);
}

}  // namespace
}  // namespace ems::internal
