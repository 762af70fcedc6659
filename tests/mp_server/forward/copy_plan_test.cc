// What must hold: after a change of view each holder that may lack something is offered it by one
// that has it, and nobody else is.
#include "mp_server/forward/copy_plan.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace ems::server {
namespace {

constexpr SlotId kSlot{7};

class CopyPlanTest : public ::testing::Test {
 protected:
  struct Node {
    uint32_t id;
    uint64_t boot = 0;
  };
  // kSlot has this owner and these holders; nobody has another slot.
  static std::shared_ptr<const DhtView> View(std::vector<Node> nodes, uint32_t owner,
                                             std::vector<uint32_t> copies) {
    static uint64_t epoch = 0;
    std::vector<NodeInfo> infos;
    for (const Node& node : nodes) {
      NodeInfo& info = infos.emplace_back();
      info.id = NodeId(node.id);
      info.name = "n" + std::to_string(node.id);
      info.boot_id = node.boot == 0 ? node.id : node.boot;
    }
    SlotTable slots;
    slots.set_owner(kSlot, NodeId(owner));
    std::vector<NodeId> holders;
    for (const uint32_t id : copies) holders.emplace_back(id);
    SlotCopies all;
    all.Set(kSlot, holders);
    auto view = DhtView::Make(ViewVersion(1, ++epoch), infos, slots, false, {}, kNoCluster, {},
                              std::move(all));
    EXPECT_TRUE(view.ok()) << view.status();
    return *view;
  }
  // To whom `self` offers what is in kSlot, of namespaces with so many replicas.
  std::set<uint32_t> Offers(const DhtView& view, uint32_t self, uint32_t replicas,
                            const std::set<NodeId>& missed = {}) {
    std::set<uint32_t> nodes;
    for (const auto& [node, slots] : plan_.Due(view, NodeId(self), missed))
      if (slots[replicas - 2][kSlot.value()]) nodes.insert(node.value());
    return nodes;
  }
  using Nodes = std::set<uint32_t>;
  CopyPlan plan_;
};

TEST_F(CopyPlanTest, AnOwnerOffersToThoseThatAreToHoldCopiesFromNowOn) {
  const auto none = View({{1}, {2}, {3}}, 1, {});
  plan_.Settle(*none);
  const auto view = View({{1}, {2}, {3}}, 1, {2, 3});
  EXPECT_EQ(Offers(*view, 1, 2), Nodes({2}));
  EXPECT_EQ(Offers(*view, 1, 3), Nodes({2, 3}));
  EXPECT_EQ(Offers(*view, 2, 3), Nodes()) << "it has nothing";
  plan_.Settle(*view);
  EXPECT_EQ(Offers(*view, 1, 3), Nodes());
}

TEST_F(CopyPlanTest, WhoTakesOverOffersToTheNewHolder) {
  plan_.Settle(*View({{1}, {2}, {3}}, 1, {2}));
  const auto view = View({{2}, {3}}, 2, {3});
  EXPECT_EQ(Offers(*view, 2, 2), Nodes({3}));
  EXPECT_EQ(Offers(*view, 3, 2), Nodes());
}

TEST_F(CopyPlanTest, AHolderOffersToAnOwnerThatHasNothing) {
  plan_.Settle(*View({{1}, {2}, {3}}, 1, {2}));
  const auto view = View({{2}, {3}}, 3, {2});
  EXPECT_EQ(Offers(*view, 2, 2), Nodes({3}));
  EXPECT_EQ(Offers(*view, 3, 2), Nodes());
}

TEST_F(CopyPlanTest, TwoHoldersDoNotBothFillTheNewOne) {
  plan_.Settle(*View({{1}, {2}, {3}, {4}}, 1, {2, 3}));
  const auto view = View({{2}, {3}, {4}}, 2, {3, 4});
  EXPECT_EQ(Offers(*view, 2, 3), Nodes({4}));
  EXPECT_EQ(Offers(*view, 3, 3), Nodes({2})) << "the new owner may lack what it has";
}

TEST_F(CopyPlanTest, AProcessThatHasBegunAnewHasNothing) {
  plan_.Settle(*View({{1}, {2}}, 1, {2}));
  const auto holder = View({{1}, {2, 77}}, 1, {2});
  EXPECT_EQ(Offers(*holder, 1, 2), Nodes({2}));
  const auto owner = View({{1, 78}, {2}}, 1, {2});
  EXPECT_EQ(Offers(*owner, 2, 2), Nodes({1}));
}

TEST_F(CopyPlanTest, AServerThatIsBackBeforeTheRepairCostsNothing) {
  plan_.Settle(*View({{1}, {2}, {3}}, 1, {2}));
  const auto without = View({{1}, {3}}, 1, {3});
  EXPECT_EQ(Offers(*without, 1, 2), Nodes({3}));
  const auto back = View({{1}, {2}, {3}}, 1, {2});
  EXPECT_EQ(Offers(*back, 1, 2), Nodes());
}

TEST_F(CopyPlanTest, WhatWasMissedIsOfferedByItsOwner) {
  const auto view = View({{1}, {2}, {3}}, 1, {2, 3});
  plan_.Settle(*view);
  EXPECT_EQ(Offers(*view, 1, 3, {NodeId(3)}), Nodes({3}));
  EXPECT_EQ(Offers(*view, 1, 2, {NodeId(3)}), Nodes()) << "it holds no copies of those";
  EXPECT_EQ(Offers(*view, 2, 3, {NodeId(3)}), Nodes());
}

}  // namespace
}  // namespace ems::server
