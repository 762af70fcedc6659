// What must hold: a slot's contents are kept only where the view proves that nobody else can have
// written there, and without a proof only under the same view or the next.
#include "mp_server/ssd/slot_grant.h"

#include <gtest/gtest.h>

namespace ems::ssd {
namespace {

constexpr uint64_t kHistory = 7;
constexpr uint64_t kLineage = 40;

// Slots 0 to 9 are owned, slot i since epoch 10 + i.
SlotGrant Grant(ViewVersion view, uint64_t history) {
  SlotGrant grant;
  grant.view = view;
  grant.history = history;
  for (uint16_t i = 0; i < 10; ++i) grant.owned[i] = true;
  if (history == 0) return grant;
  grant.since.assign(kSlotCount, 1);
  for (uint16_t i = 0; i < 10; ++i) grant.since[i] = 10u + i;
  return grant;
}

TEST(SlotGrantTest, WithAHistoryEachSlotIsJudgedByItself) {
  const SlotGrant grant = Grant({3, 90}, kHistory);
  const std::bitset<kSlotCount> kept = grant.Kept({{1, 14}, kHistory, kLineage});
  EXPECT_EQ(kept.count(), 5u) << "those held since 10 to 14";
  EXPECT_TRUE(kept[4]);
  EXPECT_FALSE(kept[5]);
  EXPECT_FALSE(kept[20]) << "not owned";
}

TEST(SlotGrantTest, WithoutAHistoryOnlyTheSameViewOrTheNextKeeps) {
  for (const auto& [then, now] :
       {std::pair(uint64_t{0}, uint64_t{0}), std::pair(kHistory, uint64_t{0}),
        std::pair(uint64_t{0}, kHistory)}) {
    const GrantRecord before{{1, 89}, then, kLineage};
    EXPECT_EQ(Grant({1, 89}, now).Kept(before).count(), 10u);
    EXPECT_EQ(Grant({2, 90}, now).Kept(before).count(), 10u);
    EXPECT_EQ(Grant({2, 91}, now).Kept(before).count(), 0u);
  }
}

TEST(SlotGrantTest, NothingIsKeptWithoutARecordAnOlderViewOrAnotherHistory) {
  EXPECT_EQ(Grant({1, 90}, kHistory).Kept({}).count(), 0u);
  EXPECT_EQ(Grant({1, 90}, kHistory).Kept({{1, 91}, kHistory, kLineage}).count(), 0u);
  EXPECT_EQ(Grant({1, 90}, kHistory).Kept({{1, 90}, kHistory + 1, kLineage}).count(), 0u)
      << "another controller's store";
  EXPECT_EQ(Grant({2, 90}, kHistory).Kept({{1, 91}, kHistory, kLineage}).count(), 0u)
      << "an older copy of the store, started once more often";
  EXPECT_EQ(Grant({2, 90}, 0).Kept({{1, 91}, 0, kLineage}).count(), 0u);
}

TEST(SlotGrantTest, AViewThatDoesNotShowThisServerProvesNothingAndIsRememberedSo) {
  SlotGrant grant = Grant({1, 90}, kHistory);
  grant.shown = false;
  EXPECT_EQ(grant.Kept({{1, 90}, kHistory, kLineage}).count(), 0u);
  EXPECT_EQ(grant.Record(kLineage).history, 0u);
  grant.shown = true;
  EXPECT_EQ(grant.Record(kLineage), (GrantRecord{{1, 90}, kHistory, kLineage}));
}

TEST(SlotGrantTest, ARecordSurvivesAsText) {
  const GrantRecord record{{3, 90}, ~uint64_t{0}, kLineage};
  const auto back = GrantRecord::FromText(record.ToText());
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(*back, record);
  for (const char* text :
       {"", "1 2", "1 2 3 ", "1 2 3 4", "a 2 3", "1  2 3", "-1 2 3", "1 2 99999999999999999999"}) {
    EXPECT_EQ(GrantRecord::FromText(text).status().code(), StatusCode::kDataLoss) << text;
  }
}

TEST(SlotGrantTest, OnlyTheVeryNextOwnerFollows) {
  const SlotGrant grant = Grant({3, 90}, kHistory);
  EXPECT_TRUE(grant.Follows({{1, 13}, kHistory, kLineage}, 4)) << "since 14";
  EXPECT_FALSE(grant.Follows({{1, 12}, kHistory, kLineage}, 4)) << "another may have had it in 13";
  EXPECT_FALSE(grant.Follows({{1, 14}, kHistory, kLineage}, 4));
  EXPECT_FALSE(grant.Follows({{1, 13}, kHistory + 1, kLineage}, 4));
  EXPECT_FALSE(Grant({3, 90}, 0).Follows({{1, 13}, 0, kLineage}, 4));
}

}  // namespace
}  // namespace ems::ssd
