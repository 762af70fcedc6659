// What must hold: while less than the limit is held whoever asks gets its bytes, and nobody
// afterwards, until a hold goes; what was held is given back once.
#include "mp_server/store/allowance.h"

#include <gtest/gtest.h>

#include <utility>

namespace ems::server {
namespace {

TEST(AllowanceTest, GivesUntilTheLimitIsHeldAndThenNothing) {
  Allowance allowance;
  EXPECT_TRUE(allowance.Take(60, 100));
  EXPECT_TRUE(allowance.Take(60, 100)) << "all of it, or a large value had to wait for ever";
  EXPECT_FALSE(allowance.Take(1, 100));
  EXPECT_EQ(allowance.held_bytes(), 120U);
  allowance.GiveBack(60);
  EXPECT_TRUE(allowance.Take(1, 100));
}

TEST(AllowanceTest, AHoldGivesBackAllThatItHasGrownBy) {
  const auto allowance = std::make_shared<Allowance>();
  {
    Hold hold(allowance, 100);
    EXPECT_TRUE(hold.Grow(40));
    EXPECT_TRUE(hold.Grow(70));
    EXPECT_FALSE(hold.Grow(1));
    EXPECT_EQ(hold.bytes(), 110U);
    Hold other(allowance, 100);
    EXPECT_FALSE(other.Grow(1));
    other = std::move(hold);
    EXPECT_EQ(allowance->held_bytes(), 110U);
    other = Hold();
    EXPECT_EQ(allowance->held_bytes(), 0U);
    EXPECT_TRUE((other = Hold(allowance, 100)).Grow(5));
  }
  EXPECT_EQ(allowance->held_bytes(), 0U);
}

TEST(AllowanceTest, AHoldKeepsWhatItBelongsTo) {
  auto allowance = std::make_shared<Allowance>();
  Hold hold(allowance, 1);
  ASSERT_TRUE(hold.Grow(1));
  const std::weak_ptr<Allowance> left = std::exchange(allowance, nullptr);
  EXPECT_FALSE(left.expired());
  hold = Hold();
  EXPECT_TRUE(left.expired());
}

}  // namespace
}  // namespace ems::server
