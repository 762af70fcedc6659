#include "mp_server/descriptor_budget.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

namespace ems::server {
namespace {

TEST(DescriptorBudgetTest, ALimitForEverythingLeavesTheConfigurationAlone) {
  const DescriptorBudget budget = PlanDescriptors(65536, 200, 1024, 256);
  EXPECT_EQ(budget.connections_max, 1024U);
  EXPECT_EQ(budget.wanted, 200 + 1024 + 256 * kDescriptorsPerSession);
}

TEST(DescriptorBudgetTest, TheLimitItselfIsEnough) {
  const uint64_t wanted = PlanDescriptors(65536, 100, 400, 10).wanted;
  EXPECT_EQ(PlanDescriptors(wanted, 100, 400, 10).connections_max, 400U);
  EXPECT_LT(PlanDescriptors(wanted - 1, 100, 400, 10).connections_max, 400U);
}

TEST(DescriptorBudgetTest, ConnectionsNeverTakeWhatTheServerNeeds) {
  for (uint64_t limit = 0; limit < 4096; ++limit) {
    const DescriptorBudget budget = PlanDescriptors(limit, 120, 1024, 256);
    ASSERT_GE(budget.connections_max, 8U) << "a server without connections is of no use";
    ASSERT_LE(budget.connections_max, 1024U);
    if (limit >= 120 + 16) {
      ASSERT_LE(120 + budget.connections_max, limit) << limit;
    }
  }
  EXPECT_EQ(PlanDescriptors(256, 120, 1024, 256).connections_max, 68U);
}

TEST(DescriptorBudgetTest, FewConnectionsStayFew) {
  EXPECT_EQ(PlanDescriptors(64, 120, 2, 256).connections_max, 2U);
}

TEST(DescriptorBudgetTest, TheSoftLimitIsRaisedToTheHardOne) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit low{.rlim_cur = before.rlim_max / 2, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
  EXPECT_EQ(RaiseDescriptorLimit(), before.rlim_max);
  rlimit after{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &after), 0);
  EXPECT_EQ(after.rlim_cur, before.rlim_max);
  ::setrlimit(RLIMIT_NOFILE, &before);
}

}  // namespace
}  // namespace ems::server
