// What must hold: up to three different servers, none of them the owner, the same ones for
// everybody; different keys spread over all servers.
#include "cluster/hot_holders.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <vector>

namespace ems {
namespace {

std::shared_ptr<const DhtView> ViewOf(uint32_t nodes, uint32_t owner) {
  std::vector<NodeInfo> infos(nodes);
  for (uint32_t i = 0; i < nodes; ++i) infos[i].id = NodeId(i + 1);
  SlotTable slots;
  for (uint16_t s = 0; s < kSlotCount; ++s) slots.set_owner(SlotId(s), NodeId(owner));
  return *DhtView::Make({1, 1}, infos, slots, false);
}

TEST(HotHoldersTest, AreUpToThreeOthers) {
  for (uint32_t nodes = 1; nodes <= 9; ++nodes) {
    const auto view = ViewOf(nodes, 1);
    for (uint64_t hash = 0; hash < 40; ++hash) {
      std::set<NodeId> seen;
      const HotHolders holders = HotHolders::Of(*view, SlotId(3), hash);
      for (const NodeId node : holders.nodes) {
        if (node == kNoNode) continue;
        EXPECT_NE(node, NodeId(1));
        EXPECT_NE(view->Find(node), nullptr);
        EXPECT_TRUE(seen.insert(node).second);
      }
      EXPECT_EQ(seen.size(), std::min<size_t>(nodes - 1, HotHolders::kMost));
      EXPECT_EQ(holders.nodes, HotHolders::Of(*view, SlotId(3), hash).nodes);
    }
  }
}

TEST(HotHoldersTest, AViewWithoutNodesHasNone) {
  const auto view = *DhtView::Make({1, 1}, {}, SlotTable(), false);
  EXPECT_EQ(HotHolders::Of(*view, SlotId(3), 7).nodes, HotHolders().nodes);
}

TEST(HotHoldersTest, OfManyKeysLieOnAllServersAlike) {
  const auto view = ViewOf(10, 1);
  std::map<NodeId, int> copies;
  for (uint64_t hash = 0; hash < 1000; ++hash) {
    for (const NodeId node : HotHolders::Of(*view, SlotId(3), hash).nodes) ++copies[node];
  }
  for (uint32_t node = 2; node <= 10; ++node) EXPECT_GE(copies[NodeId(node)], 250) << node;
}

}  // namespace
}  // namespace ems
