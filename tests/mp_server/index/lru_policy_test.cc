#include "mp_server/index/lru_policy.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

namespace ems::server {
namespace {

std::vector<int64_t> Order(const EvictionPolicy& policy) {
  std::vector<int64_t> order;
  for (EvictionHook* hook = policy.Coldest(); hook != nullptr; hook = hook->warmer)
    order.push_back(hook->touched_ns.load());
  return order;
}

TEST(LruPolicyTest, TouchMovesToTheWarmEndAndRemoveTakesOut) {
  LruPolicy policy;
  std::array<EvictionHook, 3> hooks;
  for (int i = 0; i < 3; ++i) policy.OnInsert(&hooks[static_cast<size_t>(i)], i + 1);
  EXPECT_EQ(Order(policy), (std::vector<int64_t>{1, 2, 3}));
  policy.OnTouch(&hooks[0], 4);
  EXPECT_EQ(Order(policy), (std::vector<int64_t>{2, 3, 4}));
  policy.OnTouch(&hooks[0], 5);  // already the warmest
  policy.OnRemove(&hooks[2]);
  EXPECT_EQ(Order(policy), (std::vector<int64_t>{2, 5}));
  policy.OnRemove(&hooks[1]);
  policy.OnRemove(&hooks[0]);
  EXPECT_EQ(policy.Coldest(), nullptr);
}

}  // namespace
}  // namespace ems::server
