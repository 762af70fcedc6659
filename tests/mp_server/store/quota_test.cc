#include "mp_server/store/quota.h"

#include <gtest/gtest.h>

namespace ems::server {
namespace {

TEST(QuotaTest, ChargesToTheByteAndRefunds) {
  Quota quota;
  quota.SetLimit(100);
  EXPECT_TRUE(quota.TryCharge(60));
  EXPECT_FALSE(quota.TryCharge(41));
  EXPECT_TRUE(quota.TryCharge(40));
  EXPECT_FALSE(quota.TryCharge(1));
  EXPECT_TRUE(quota.TryCharge(0));
  quota.Refund(1);
  EXPECT_TRUE(quota.TryCharge(1));
  EXPECT_EQ(quota.used(), 100u);
}

TEST(QuotaTest, LoweredBelowUseChargesNothingUntilUseFalls) {
  Quota quota;
  EXPECT_TRUE(quota.TryCharge(uint64_t{1} << 60));  // no limit yet
  quota.SetLimit(10);
  EXPECT_TRUE(quota.exceeded());
  EXPECT_FALSE(quota.TryCharge(1));
  quota.Refund(uint64_t{1} << 60);
  EXPECT_FALSE(quota.exceeded());
  EXPECT_TRUE(quota.TryCharge(10));
}

TEST(QuotaDeathTest, RefundingMoreThanChargedIsABug) {
  Quota quota;
  ASSERT_TRUE(quota.TryCharge(5));
  EXPECT_DEATH(quota.Refund(6), "refund of 6");
}

}  // namespace
}  // namespace ems::server
