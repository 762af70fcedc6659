// What must hold: the coldest version goes whole before another one loses a block; shared blocks go
// with their warmest version; what is held or belongs to no version is in no way of that.
#include "mp_server/index/version_policy.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

namespace ems::server {
namespace {

constexpr int64_t kGrain = VersionHeat::kGrainNs;

class VersionPolicyTest : public ::testing::Test {
 protected:
  // Hooks are told apart by their number.
  void Insert(size_t hook, std::initializer_list<uint32_t> versions) {
    policy.OnInsert(&hooks[hook], ++now);
    for (const uint32_t version : versions) {
      heat.Use(version, now);
      policy.OnGroup(&hooks[hook], heat.Joined(hooks[hook].group, version));
    }
  }
  void Touch(size_t hook) { policy.OnTouch(&hooks[hook], now += kGrain); }
  std::vector<size_t> EvictAll() {
    std::vector<size_t> order;
    while (EvictionHook* coldest = policy.Coldest()) {
      order.push_back(static_cast<size_t>(static_cast<EvictionHook*>(coldest) - hooks.data()));
      policy.OnRemove(coldest);
    }
    EXPECT_EQ(policy.ColdestNs(), EvictionPolicy::kNever);
    return order;
  }
  VersionHeat heat;
  VersionPolicy policy{&heat};
  std::array<EvictionHook, 8> hooks;
  int64_t now = kGrain;
};

using Order = std::vector<size_t>;

TEST_F(VersionPolicyTest, VersionsGoWholeTheColdestFirst) {
  Insert(0, {1});
  Insert(1, {2});
  Insert(2, {1});
  Insert(3, {2});
  Insert(4, {3});
  Touch(0);  // one block of version 1: all of it is in use
  EXPECT_EQ(EvictAll(), (Order{1, 3, 4, 2, 0}));
}

TEST_F(VersionPolicyTest, ASharedBlockGoesWithItsWarmestVersion) {
  Insert(0, {1});
  Insert(1, {1, 2});
  Insert(2, {2});
  Insert(3, {3});
  heat.Use(1, now += kGrain);
  Insert(4, {4});
  heat.Use(2, now += kGrain);
  Touch(2);
  EXPECT_EQ(EvictAll(), (Order{3, 0, 4, 2, 1})) << "not with version 1, which went before 4";
}

TEST_F(VersionPolicyTest, WhatBelongsToNoVersionGoesByItsLastUse) {
  Insert(0, {1});
  Insert(1, {});
  Insert(2, {1});
  Insert(3, {});
  Touch(1);
  EXPECT_EQ(EvictAll(), (Order{0, 2, 3, 1}));
}

TEST_F(VersionPolicyTest, AVersionIsWarmByItsUseBeforeAnyOfItsBlocksIsTouched) {
  Insert(0, {1});
  Insert(1, {2});
  EXPECT_EQ(policy.Coldest(), &hooks[0]);
  heat.Use(1, now += kGrain);
  EXPECT_EQ(policy.Coldest(), &hooks[1]);
  EXPECT_EQ(policy.ColdestNs(), heat.UsedNs(hooks[1].group));
}

TEST_F(VersionPolicyTest, WhatIsHeldMakesWayForOthersOfItsVersionAndForOtherVersions) {
  Insert(0, {1});
  Insert(1, {1});
  Insert(2, {2});
  policy.OnHeld(&hooks[0], ++now);
  EXPECT_EQ(policy.Coldest(), &hooks[2]) << "somebody reads version 1";
  policy.OnRemove(&hooks[2]);
  EXPECT_EQ(policy.Coldest(), &hooks[1]) << "not the same one again";
}

TEST_F(VersionPolicyTest, WhatWasRemovedFromTheListGoesFirst) {
  Insert(0, {1});
  Insert(1, {2});
  Insert(2, {2});
  Insert(3, {1, 2});
  heat.Forget(2);
  EXPECT_EQ(EvictAll(), (Order{1, 2, 0, 3}));
}

}  // namespace
}  // namespace ems::server
