// What must hold: copies are on other servers than their owner, apart where that is possible, even
// by weight, and stay where they are while they can.
#include "mp_controller/publish/copy_builder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "mp_controller/publish/view_builder.h"

namespace ems::controller {
namespace {

std::vector<NodeInfo> MakeNodes(uint32_t count) {
  std::vector<NodeInfo> nodes;
  for (uint32_t i = 1; i <= count; ++i) {
    NodeInfo node;
    node.id = NodeId(i);
    node.name = "n" + std::to_string(i);
    node.host_id = "host-" + std::to_string(i);
    node.capacity_bytes = uint64_t{1} << 30;
    nodes.push_back(node);
  }
  return nodes;
}

std::map<NodeId, size_t> Loads(const SlotCopies& copies) {
  std::map<NodeId, size_t> loads;
  for (uint16_t i = 0; i < kSlotCount; ++i)
    for (const NodeId node : copies.Of(SlotId(i))) ++loads[node];
  return loads;
}

size_t Moved(const SlotCopies& before, const SlotCopies& after) {
  size_t moved = 0;
  for (uint16_t i = 0; i < kSlotCount; ++i)
    for (const NodeId node : after.Of(SlotId(i)))
      moved += std::ranges::count(before.Of(SlotId(i)), node) == 0 ? 1 : 0;
  return moved;
}

void ExpectSound(const SlotCopies& copies, const SlotTable& owners, size_t wanted) {
  for (uint16_t i = 0; i < kSlotCount; ++i) {
    const auto holders = copies.Of(SlotId(i));
    ASSERT_EQ(holders.size(), wanted) << i;
    ASSERT_EQ(std::ranges::count(holders, owners.owner(SlotId(i))), 0) << i;
    if (wanted == 2) {
      ASSERT_NE(holders[0], holders[1]) << i;
    }
  }
}

TEST(CopyBuilderTest, CopiesAreElsewhereAndEven) {
  for (const uint32_t count : {2U, 3U, 7U, 40U}) {
    const auto nodes = MakeNodes(count);
    const SlotTable owners = BuildSlotsOf(SlotTable(), nodes);
    for (const size_t wanted : {size_t{1}, size_t{2}}) {
      const SlotCopies copies = BuildCopies({}, owners, nodes, wanted);
      const size_t possible = std::min<size_t>(wanted, count - 1);
      ExpectSound(copies, owners, possible);
      for (const auto& [node, load] : Loads(copies))
        EXPECT_LE(static_cast<double>(load),
                  1.06 * kSlotCount * static_cast<double>(possible) / count + 1)
            << count << " nodes, node " << node.value();
    }
  }
}

TEST(CopyBuilderTest, NobodyHoldsAnyWhereNoneAreWanted) {
  const auto nodes = MakeNodes(3);
  const SlotTable owners = BuildSlotsOf(SlotTable(), nodes);
  EXPECT_TRUE(BuildCopies({}, owners, nodes, 0).empty());
  EXPECT_TRUE(BuildCopies({}, owners, std::span(nodes).first(1), 2).empty());
  const SlotCopies before = BuildCopies({}, owners, nodes, 2);
  EXPECT_TRUE(BuildCopies(before, owners, nodes, 0).empty());
}

TEST(CopyBuilderTest, TheSameNodesMoveNothingWhateverTheirOrder) {
  auto nodes = MakeNodes(9);
  const SlotTable owners = BuildSlotsOf(SlotTable(), nodes);
  const SlotCopies copies = BuildCopies({}, owners, nodes, 2);
  EXPECT_EQ(BuildCopies(copies, owners, nodes, 2), copies);
  std::ranges::reverse(nodes);
  EXPECT_EQ(BuildCopies({}, owners, nodes, 2), copies);
}

TEST(CopyBuilderTest, ALostOwnersSlotsGoToThoseThatHoldTheirCopies) {
  auto nodes = MakeNodes(3);
  const SlotTable owners = BuildSlotsOf(SlotTable(), nodes);
  const SlotCopies copies = BuildCopies({}, owners, nodes, 1);
  nodes.erase(nodes.begin());
  const SlotTable next = BuildSlotsOf(owners, nodes, copies);
  size_t lost = 0, inherited = 0;
  for (uint16_t i = 0; i < kSlotCount; ++i) {
    const SlotId slot(i);
    if (owners.owner(slot) != NodeId(1)) continue;
    ++lost;
    inherited += next.owner(slot) == copies.Of(slot)[0] ? 1 : 0;
  }
  EXPECT_GT(inherited * 100, lost * 94);
  const SlotCopies after = BuildCopies(copies, next, nodes, 1);
  ExpectSound(after, next, 1);
  // Of the slots that stay with their owner a copy is made only where the lost one held it.
  for (uint16_t i = 0; i < kSlotCount; ++i) {
    const SlotId slot(i);
    if (owners.owner(slot) == next.owner(slot) && copies.Of(slot)[0] != NodeId(1)) {
      EXPECT_EQ(after.Of(slot)[0], copies.Of(slot)[0]) << i;
    }
  }
}

TEST(CopyBuilderTest, AJoinMovesLittleMoreThanItsShare) {
  const auto nodes = MakeNodes(10);
  const auto few = std::span(nodes).first(9);
  const SlotTable owners = BuildSlotsOf(SlotTable(), few);
  const SlotCopies copies = BuildCopies({}, owners, few, 1);
  const SlotTable next = BuildSlotsOf(owners, nodes, copies);
  const SlotCopies after = BuildCopies(copies, next, nodes, 1);
  ExpectSound(after, next, 1);
  // Its share of the copies, and copies that were on what became the slot's owner.
  EXPECT_LT(Moved(copies, after), size_t{kSlotCount} / 10 * 13 / 10);
}

TEST(CopyBuilderTest, CopiesStandApartWhereTheyCan) {
  auto nodes = MakeNodes(6);
  for (size_t i = 0; i < nodes.size(); ++i)
    nodes[i].failure_domain = "z/rack-" + std::to_string(i % 3) + "/" + nodes[i].name;
  const SlotTable owners = BuildSlotsOf(SlotTable(), nodes);
  const SlotCopies copies = BuildCopies({}, owners, nodes, 2);
  ExpectSound(copies, owners, 2);
  for (uint16_t i = 0; i < kSlotCount; ++i) {
    const auto holders = copies.Of(SlotId(i));
    const uint32_t owner = owners.owner(SlotId(i)).value() - 1;
    const uint32_t first = holders[0].value() - 1, second = holders[1].value() - 1;
    ASSERT_NE(owner % 3, first % 3) << i;
    ASSERT_NE(owner % 3, second % 3) << i;
    ASSERT_NE(first % 3, second % 3) << i;
  }
  // One that was placed before the racks were told moves.
  auto unlabelled = nodes;
  for (NodeInfo& node : unlabelled) node.failure_domain.clear();
  EXPECT_EQ(
      BuildCopies(BuildCopies({}, owners, unlabelled, 2), owners, nodes, 2).Of(SlotId(0)).size(),
      2U);
}

TEST(CopyBuilderTest, TwoRacksForThreeCopiesAreStableAllTheSame) {
  auto nodes = MakeNodes(6);
  for (size_t i = 0; i < nodes.size(); ++i)
    nodes[i].failure_domain = "rack-" + std::to_string(i % 2) + "/" + nodes[i].name;
  const SlotTable owners = BuildSlotsOf(SlotTable(), nodes);
  const SlotCopies copies = BuildCopies({}, owners, nodes, 2);
  ExpectSound(copies, owners, 2);
  EXPECT_EQ(BuildCopies(copies, owners, nodes, 2), copies);
}

}  // namespace
}  // namespace ems::controller
