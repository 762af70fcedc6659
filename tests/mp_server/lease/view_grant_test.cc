#include "mp_server/lease/view_grant.h"

#include <gtest/gtest.h>

namespace ems::server {
namespace {

constexpr NodeId kSelf(4);
constexpr uint64_t kLineage = 40;
constexpr uint64_t kBoot = 8;

std::shared_ptr<const DhtView> View(uint64_t lineage, bool with_history) {
  NodeInfo self, other;
  self.id = kSelf;
  self.boot_id = kBoot;
  self.lineage = lineage;
  other.id = NodeId(5);
  SlotTable slots;
  std::vector<uint64_t> since;
  for (uint16_t i = 0; i < kSlotCount; ++i) {
    slots.set_owner(SlotId(i), i < 3 ? kSelf : other.id);
    since.push_back(i);
  }
  SlotHistory history;
  if (with_history) history = *SlotHistory::Make(9, since, kSlotCount);
  return *DhtView::Make({2, kSlotCount}, {self, other}, slots, false, history);
}

TEST(ViewGrantTest, SaysWhatIsOwnedAndSinceWhen) {
  const ssd::SlotGrant grant = GrantOf(*View(kLineage, true), kSelf, kLineage);
  EXPECT_EQ(grant.view, ViewVersion(2, kSlotCount));
  EXPECT_EQ(grant.owned.count(), 3u);
  EXPECT_TRUE(grant.owned[2]);
  EXPECT_EQ(grant.history, 9u);
  EXPECT_TRUE(grant.shown);
  EXPECT_EQ(grant.since.at(17), 17u);
  EXPECT_EQ(GrantOf(*View(kLineage, true), kNoNode, kLineage).owned.count(), 0u);
}

TEST(ViewGrantTest, AnotherLifeOfTheNameIsNotThisOne) {
  EXPECT_FALSE(GrantOf(*View(kLineage, true), kSelf, kLineage + 1).shown);
  EXPECT_TRUE(ShowsAnother(*View(kLineage, true), kSelf, kBoot + 1, kLineage + 1));
  EXPECT_TRUE(ShowsAnother(*View(kLineage, false), kSelf, kBoot + 1, kLineage + 1));
  EXPECT_TRUE(ShowsAnother(*View(kLineage, true), kSelf, kBoot + 1, 0));
  EXPECT_FALSE(ShowsAnother(*View(kLineage, true), kSelf, kBoot + 1, kLineage));
  EXPECT_FALSE(ShowsAnother(*View(kLineage, true), NodeId(6), kBoot + 1, kLineage));
}

// It stores nothing, but takes Puts.
TEST(ViewGrantTest, AnotherLifeWithoutAStorageIsNotThisOne) {
  EXPECT_TRUE(ShowsAnother(*View(0, true), kSelf, kBoot + 1, kLineage));
  EXPECT_FALSE(ShowsAnother(*View(0, false), kSelf, kBoot + 1, kLineage))
      << "a controller that knows no lineages shows none";
  EXPECT_FALSE(ShowsAnother(*View(0, true), kSelf, kBoot + 1, 0));
}

// Or this process would wait for a view for ever: it registered with a controller that knew no
// lineages, and is not asked again by its successor.
TEST(ViewGrantTest, ThisVeryProcessIsNeverAnother) {
  EXPECT_FALSE(ShowsAnother(*View(0, true), kSelf, kBoot, kLineage));
  EXPECT_FALSE(GrantOf(*View(0, true), kSelf, kLineage).shown) << "but nothing is remembered of it";
}

TEST(ViewGrantTest, AnOlderControllerSaysNothing) {
  const ssd::SlotGrant grant = GrantOf(*View(0, false), kSelf, kLineage);
  EXPECT_EQ(grant.history, 0u);
  EXPECT_TRUE(grant.since.empty());
  EXPECT_EQ(grant.owned.count(), 3u);
}

TEST(ViewGrantTest, OriginsAreWhatTheViewKnowsOfTheTimeBefore) {
  NodeInfo self;
  self.id = kSelf;
  SlotTable slots;
  for (uint16_t i = 0; i < kSlotCount; ++i) slots.set_owner(SlotId(i), kSelf);
  std::vector<NodeId> previous(kSlotCount, kNoNode);
  previous[3] = NodeId(8);
  const auto view = *DhtView::Make({1, 6}, {self}, slots, false,
                                   *SlotHistory::Make(9, std::vector<uint64_t>(kSlotCount, 6), 6),
                                   kNoCluster, previous);
  const ssd::SlotGrant grant = GrantOf(*view, kSelf, 0);
  std::bitset<kSlotCount> wanted;
  EXPECT_TRUE(OriginsOf(*view, grant, wanted).empty());
  wanted.set(3).set(4);
  const auto origins = OriginsOf(*view, grant, wanted);
  ASSERT_EQ(origins.size(), 1U);
  EXPECT_EQ(origins.at(3).node, NodeId(8));
  EXPECT_EQ(origins.at(3).era, (Era{9, 6}));
}

}  // namespace
}  // namespace ems::server
