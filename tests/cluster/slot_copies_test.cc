// What must hold: who holds copies travels with a view, whole and as a delta, and is believed only
// where it is what was sent; software that knows nothing of it reads the view as before.
#include "cluster/slot_copies.h"

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "cluster/dht_view.h"
#include "proto/controller.pb.h"

namespace ems {
namespace {

std::vector<NodeInfo> Nodes(uint32_t count) {
  std::vector<NodeInfo> nodes;
  for (uint32_t i = 1; i <= count; ++i) {
    NodeInfo& node = nodes.emplace_back();
    node.id = NodeId(i);
    node.name = "n" + std::to_string(i);
    node.boot_id = i;
    node.failure_domain = "rack/" + node.name;
  }
  return nodes;
}

SlotTable Striped(uint32_t nodes) {
  SlotTable slots;
  for (uint32_t i = 0; i < kSlotCount; ++i)
    slots.set_owner(SlotId(static_cast<uint16_t>(i)), NodeId(1 + i % nodes));
  return slots;
}

// Of each slot of Striped(nodes) the next node, and the one behind it.
SlotCopies Next(uint32_t nodes, size_t copies) {
  SlotCopies all;
  for (uint32_t i = 0; i < kSlotCount; ++i) {
    const std::array<NodeId, 2> holders{NodeId(1 + (i + 1) % nodes), NodeId(1 + (i + 2) % nodes)};
    all.Set(SlotId(static_cast<uint16_t>(i)), std::span(holders).first(copies));
  }
  return all;
}

std::shared_ptr<const DhtView> View(uint64_t epoch, SlotCopies copies) {
  auto view = DhtView::Make(ViewVersion(1, epoch), Nodes(4), Striped(4), false, {}, ClusterId(7),
                            {}, std::move(copies));
  EXPECT_TRUE(view.ok()) << view.status();
  return *view;
}

TEST(SlotCopiesTest, SaysWhoHoldsThemInTheirOrder) {
  SlotCopies copies;
  EXPECT_TRUE(copies.empty());
  EXPECT_TRUE(copies.Of(SlotId(3)).empty());
  copies.Set(SlotId(3), {});
  EXPECT_TRUE(copies.empty());
  const std::array<NodeId, 2> two{NodeId(9), NodeId(4)};
  copies.Set(SlotId(3), two);
  ASSERT_EQ(copies.Of(SlotId(3)).size(), 2U);
  EXPECT_EQ(copies.Of(SlotId(3))[0], NodeId(9));
  EXPECT_EQ(copies.Of(SlotId(3))[1], NodeId(4));
  EXPECT_TRUE(copies.Of(SlotId(4)).empty());
  copies.Set(SlotId(3), std::span(two).first(1));
  EXPECT_EQ(copies.Of(SlotId(3)).size(), 1U);
}

TEST(SlotCopiesTest, ComeWithAWholeView) {
  for (const size_t count : {size_t{0}, size_t{1}, size_t{2}}) {
    const auto view = View(5, count == 0 ? SlotCopies() : Next(4, count));
    v1::View proto;
    view->ToProto(&proto);
    EXPECT_EQ(proto.copies_checksum() != 0, count > 0);
    EXPECT_EQ(proto.second_copies().empty(), count < 2);
    const auto back = DhtView::FromProto(proto);
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ((*back)->copies(), view->copies());
    EXPECT_EQ((*back)->nodes(), view->nodes());
  }
}

TEST(SlotCopiesTest, ComeWithADeltaAndGoWithOne) {
  SlotCopies changed = Next(4, 2);
  changed.Set(SlotId(0), std::array<NodeId, 1>{NodeId(4)});
  const std::vector<SlotCopies> all = {SlotCopies(), Next(4, 1), Next(4, 2), changed, SlotCopies()};
  for (size_t from = 0; from < all.size(); ++from) {
    for (size_t to = 0; to < all.size(); ++to) {
      const auto base = View(5, all[from]), next = View(6, all[to]);
      v1::ViewDelta delta;
      next->ToDelta(*base, &delta);
      const auto back = DhtView::Apply(*base, delta);
      ASSERT_TRUE(back.ok()) << from << " to " << to << ": " << back.status();
      EXPECT_EQ((*back)->copies(), next->copies()) << from << " to " << to;
    }
  }
  v1::ViewDelta small;
  View(6, changed)->ToDelta(*View(5, Next(4, 2)), &small);
  EXPECT_LT(small.copies().size() + small.second_copies().size(), 20U);
}

TEST(SlotCopiesTest, WhatIsNotWhatWasSentIsRefused) {
  v1::View proto;
  View(5, Next(4, 2))->ToProto(&proto);
  v1::View changed = proto;
  changed.clear_copies();
  EXPECT_EQ(DhtView::FromProto(changed).status().code(), StatusCode::kDataLoss);
  changed = proto;
  changed.set_copies_checksum(proto.copies_checksum() + 1);
  EXPECT_EQ(DhtView::FromProto(changed).status().code(), StatusCode::kDataLoss);
}

// As an older version reads it, and one that made it before there were copies.
TEST(SlotCopiesTest, OlderSoftwareReadsTheRest) {
  v1::View proto;
  View(5, Next(4, 2))->ToProto(&proto);
  proto.clear_copies();
  proto.clear_second_copies();
  proto.clear_copies_checksum();
  const auto old = DhtView::FromProto(proto);
  ASSERT_TRUE(old.ok()) << old.status();
  EXPECT_TRUE((*old)->copies().empty());
  EXPECT_EQ((*old)->Fingerprint(), View(5, Next(4, 2))->Fingerprint())
      << "the controller compares it with what servers say, older ones, too";
}

TEST(SlotCopiesTest, NoOwnerHoldsACopyAndNobodyTwoOfOne) {
  const auto make = [](std::vector<NodeId> holders) {
    SlotCopies copies;
    copies.Set(SlotId(0), holders);
    return DhtView::Make(ViewVersion(1, 1), Nodes(4), Striped(4), false, {}, kNoCluster, {},
                         std::move(copies));
  };
  EXPECT_TRUE(make({NodeId(2), NodeId(3)}).ok());
  EXPECT_FALSE(make({NodeId(1)}).ok()) << "its owner";
  EXPECT_FALSE(make({NodeId(2), NodeId(2)}).ok());
  EXPECT_FALSE(make({NodeId(5)}).ok()) << "no node of it";
}

}  // namespace
}  // namespace ems
