#include "cluster/slot_table.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace ems {
namespace {

TEST(SlotTableTest, BeginsWithoutOwnersAndCounts) {
  SlotTable table;
  EXPECT_EQ(table.CountOf(kNoNode), kSlotCount);
  table.set_owner(SlotId(0), NodeId(7));
  table.set_owner(SlotId(kSlotCount - 1), NodeId(7));
  EXPECT_EQ(table.CountOf(NodeId(7)), 2u);
  EXPECT_EQ(table.owner(SlotId(kSlotCount - 1)), NodeId(7));
}

TEST(SlotTableTest, KeysSpreadEvenlyAndByNamespace) {
  std::vector<int> hits(kSlotCount);
  int same = 0;
  for (int i = 0; i < 100'000; ++i) {
    const std::string key = "key" + std::to_string(i);
    const SlotId slot = SlotOf(NamespaceId(1), key);
    ASSERT_LT(slot.value(), kSlotCount);
    ++hits[slot.value()];
    if (slot == SlotOf(NamespaceId(2), key)) ++same;
  }
  for (const int count : hits) EXPECT_LT(count, 30);  // 6.1 on average, 9 sigma away
  EXPECT_LT(same, 50);                                // another namespace, another slot
}

TEST(SlotTableTest, CountsSlotsThatHaveAnotherOwner) {
  SlotTable before, later;
  before.set_owner(SlotId(1), NodeId(7));
  before.set_owner(SlotId(2), NodeId(7));
  later.set_owner(SlotId(2), NodeId(7));
  later.set_owner(SlotId(3), NodeId(8));
  EXPECT_EQ(before.CountMoved(later), 2U);
  EXPECT_EQ(before.CountMoved(before), 0U);
}

// Where a key lives is part of the format: servers and clients of different builds must agree.
TEST(SlotTableTest, SlotOfNeverChanges) {
  // Frozen: a change would make every stored object unreachable.
  EXPECT_EQ(SlotOf(NamespaceId(1), "a"), SlotId(13501));
  EXPECT_EQ(SlotOf(NamespaceId(2), "a"), SlotId(10908));
  EXPECT_EQ(SlotOf(NamespaceId(1), std::string_view("\0b", 2)), SlotId(4207));
}

}  // namespace
}  // namespace ems
