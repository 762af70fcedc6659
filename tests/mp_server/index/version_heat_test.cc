// What must hold: a block is as warm as the warmest of its versions; what is removed is cold; there
// is a bound to groups, and what finds none goes by itself.
#include "mp_server/index/version_heat.h"

#include <gtest/gtest.h>

namespace ems::server {
namespace {

constexpr int64_t kGrain = VersionHeat::kGrainNs;

TEST(VersionHeatTest, ABlockOfSeveralVersionsIsAsWarmAsTheWarmest) {
  VersionHeat heat;
  heat.Use(1, 100);
  heat.Use(2, 200);
  const uint32_t first = heat.Joined(0, 1), second = heat.Joined(0, 2);
  EXPECT_NE(first, second);
  EXPECT_EQ(heat.Joined(first, 1), first) << "it is one of its blocks already";
  const uint32_t both = heat.Joined(first, 2);
  EXPECT_EQ(heat.Joined(second, 1), both) << "whoever came first";
  EXPECT_EQ(heat.UsedNs(first), 100);
  EXPECT_EQ(heat.UsedNs(both), 200);
  heat.Use(1, 300);
  EXPECT_EQ(heat.UsedNs(both), 300);
  EXPECT_EQ(heat.UsedNs(second), 200);
  heat.Use(1, 250);
  EXPECT_EQ(heat.UsedNs(first), 300) << "uses that are told late";
}

TEST(VersionHeatTest, ATouchWarmsItsGroupOnceAGrain) {
  VersionHeat heat;
  heat.Use(1, kGrain);
  const uint32_t group = heat.Joined(0, 1);
  heat.Touch(group, 2 * kGrain - 1);
  EXPECT_EQ(heat.UsedNs(group), kGrain);
  heat.Touch(group, 2 * kGrain);
  EXPECT_EQ(heat.UsedNs(group), 2 * kGrain);
  heat.Touch(group, 2 * kGrain + 1, /*held=*/true);
  EXPECT_EQ(heat.UsedNs(group), 2 * kGrain + 1);
}

TEST(VersionHeatTest, WhatIsRemovedIsColdAndItsSharedBlocksCountByTheOthers) {
  VersionHeat heat;
  heat.Use(1, 100);
  heat.Use(2, 900);
  const uint32_t first = heat.Joined(0, 1), second = heat.Joined(0, 2);
  const uint32_t both = heat.Joined(first, 2);
  EXPECT_EQ(heat.UsedNs(both), 900);
  heat.Forget(2);
  EXPECT_EQ(heat.forgotten(), 1U);
  EXPECT_EQ(heat.UsedNs(second), 0);
  EXPECT_EQ(heat.UsedNs(both), 100);
  heat.Forget(2);
  heat.Forget(77);
  EXPECT_EQ(heat.forgotten(), 1U) << "of nothing";
}

TEST(VersionHeatTest, ABlockOfVeryManyVersionsCountsByTheWarmest) {
  VersionHeat heat;
  uint32_t group = 0;
  for (uint32_t version = 1; version <= 20; ++version) {
    heat.Use(version, 1000 - version);
    group = heat.Joined(group, version);
  }
  EXPECT_EQ(heat.UsedNs(group), 999);
  heat.Use(20, 5000);
  EXPECT_EQ(heat.UsedNs(group), 5000) << "the last one to come is among them";
}

TEST(VersionHeatTest, GroupsAreBoundedAndThoseWithoutBlocksAreUsedAgain) {
  VersionHeat heat;
  std::vector<uint32_t> groups;
  for (uint32_t version = 1; version < VersionHeat::kGroupsMax; ++version) {
    groups.push_back(heat.Joined(0, version));
    ASSERT_NE(groups.back(), 0U) << version;
    heat.Count(groups.back(), 1);
  }
  EXPECT_EQ(heat.Joined(0, 5000), 0U) << "it goes by itself";
  EXPECT_EQ(heat.Joined(groups[0], 5000), groups[0]) << "or with those that it has";
  heat.Use(5000, 100);  // for nothing
  heat.Forget(7);
  EXPECT_EQ(heat.Joined(0, 5000), 0U) << "blocks of 7 are still here";
  heat.Count(groups[6], -1);
  EXPECT_EQ(heat.Joined(0, 5000), groups[6]);
  EXPECT_EQ(heat.UsedNs(groups[6]), 0);
}

}  // namespace
}  // namespace ems::server
