#include "mp_controller/view/dht_view.h"

#include <gtest/gtest.h>

#include "proto/controller.pb.h"

namespace ems {
namespace {

NodeInfo Node(uint32_t id, uint64_t boot = 1) {
  return {.id = NodeId(id),
          .name = "n" + std::to_string(id),
          .boot_id = boot,
          .data_address = "h:1",
          .unix_path = "/s",
          .host_id = "host",
          .http_address = "h:2",
          .capacity_bytes = 100};
}

SlotTable Striped(uint32_t nodes) {
  SlotTable slots;
  for (uint32_t i = 0; i < kSlotCount; ++i)
    slots.set_owner(SlotId(static_cast<uint16_t>(i)), NodeId(1 + i % nodes));
  return slots;
}

std::shared_ptr<const DhtView> Make(uint64_t epoch, std::vector<NodeInfo> nodes,
                                    const SlotTable& slots, bool frozen = false) {
  auto view = DhtView::Make(ViewVersion(3, epoch), std::move(nodes), slots, frozen);
  EXPECT_TRUE(view.ok()) << view.status();
  return *view;
}

TEST(DhtViewTest, RefusesForeignOwnersAndDisorder) {
  EXPECT_FALSE(DhtView::Make(ViewVersion(1, 1), {Node(1)}, Striped(2), false).ok());
  EXPECT_FALSE(DhtView::Make(ViewVersion(1, 1), {Node(2), Node(1)}, Striped(2), false).ok());
  EXPECT_FALSE(DhtView::Make(ViewVersion(1, 1), {Node(1), Node(1)}, Striped(1), false).ok());
  EXPECT_TRUE(DhtView::Make(ViewVersion(1, 1), {}, SlotTable(), false).ok());
}

TEST(DhtViewTest, FindsOwners) {
  const auto view = Make(1, {Node(1), Node(2)}, Striped(2));
  EXPECT_EQ(view->Owner(SlotId(1))->id, NodeId(2));
  EXPECT_EQ(view->Find(NodeId(3)), nullptr);
  EXPECT_EQ(Make(1, {}, SlotTable())->Owner(SlotId(0)), nullptr);
}

TEST(DhtViewTest, SurvivesTheWire) {
  const auto view = Make(9, {Node(1), Node(2), Node(3)}, Striped(3), true);
  v1::View proto;
  view->ToProto(&proto);
  const auto back = DhtView::FromProto(proto);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ((*back)->version(), ViewVersion(3, 9));
  EXPECT_EQ((*back)->nodes(), view->nodes());
  EXPECT_EQ((*back)->slots(), view->slots());
  EXPECT_TRUE((*back)->frozen());
}

SlotHistory History(uint64_t id, uint64_t even, uint64_t odd, uint64_t epoch) {
  std::vector<uint64_t> since;
  for (uint32_t i = 0; i < kSlotCount; ++i) since.push_back(i % 2 == 0 ? even : odd);
  return *SlotHistory::Make(id, std::move(since), epoch);
}

std::shared_ptr<const DhtView> MakeWith(uint64_t epoch, SlotHistory history, uint64_t lineage) {
  std::vector<NodeInfo> nodes = {Node(1), Node(2)};
  nodes[0].lineage = lineage;
  return *DhtView::Make(ViewVersion(3, epoch), nodes, Striped(2), false, std::move(history));
}

TEST(DhtViewTest, ItsHistorySurvivesTheWire) {
  const auto view = MakeWith(9, History(5, 9, 2, 9), 11);
  v1::View proto;
  view->ToProto(&proto);
  const auto back = DhtView::FromProto(proto);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ((*back)->history(), view->history());
  EXPECT_EQ((*back)->nodes(), view->nodes()) << "with their lineages";
  v1::View bad = proto;
  bad.set_held_for(0, 1);
  EXPECT_EQ(DhtView::FromProto(bad).status().code(), StatusCode::kDataLoss);
  bad = proto;
  bad.mutable_nodes(0)->set_lineage(12);
  EXPECT_EQ(DhtView::FromProto(bad).status().code(), StatusCode::kDataLoss);
  bad = proto;
  bad.set_held_for(0, 10);  // before the first view
  EXPECT_EQ(DhtView::FromProto(bad).status().code(), StatusCode::kInvalidArgument);
  bad = proto;
  bad.mutable_held_for()->RemoveLast();
  EXPECT_EQ(DhtView::FromProto(bad).status().code(), StatusCode::kInvalidArgument);
}

// A view that went through a controller of an older version has lost what that does not know.
TEST(DhtViewTest, OneWithoutAHistoryIsAViewAllTheSame) {
  v1::View proto;
  MakeWith(9, History(5, 9, 2, 9), 11)->ToProto(&proto);
  proto.clear_history();
  proto.clear_held_for();
  proto.clear_history_checksum();
  for (v1::Node& node : *proto.mutable_nodes()) node.clear_lineage();
  const auto back = DhtView::FromProto(proto);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_FALSE((*back)->history().known());
}

TEST(DhtViewTest, ADeltaNamesSlotsThatHaveAnotherHistory) {
  const auto base = MakeWith(9, History(5, 9, 2, 9), 11);
  const auto next = MakeWith(12, History(5, 9, 11, 12), 11);  // the odd ones went and came back
  v1::ViewDelta delta;
  next->ToDelta(*base, &delta);
  EXPECT_EQ(delta.slots_size(), static_cast<int>(kSlotCount / 2));
  const auto applied = DhtView::Apply(*base, delta);
  ASSERT_TRUE(applied.ok()) << applied.status();
  EXPECT_EQ((*applied)->history(), next->history());
  v1::ViewDelta bad = delta;
  bad.set_since(0, 10);
  EXPECT_EQ(DhtView::Apply(*base, bad).status().code(), StatusCode::kDataLoss);
  bad = delta;
  bad.mutable_since()->RemoveLast();
  EXPECT_EQ(DhtView::Apply(*base, bad).status().code(), StatusCode::kInvalidArgument);

  const auto without = Make(9, {Node(1), Node(2)}, Striped(2));
  for (const auto& [from, to] : {std::pair(without, next), std::pair(base, MakeWith(12, {}, 0))}) {
    v1::ViewDelta other;
    to->ToDelta(*from, &other);
    const auto made = DhtView::Apply(*from, other);
    ASSERT_TRUE(made.ok()) << made.status();
    EXPECT_EQ((*made)->history(), to->history());
  }
}

TEST(DhtViewTest, AnyChangedFieldFailsTheChecksum) {
  v1::View good;
  Make(9, {Node(1), Node(2)}, Striped(2))->ToProto(&good);
  const auto code = [](const v1::View& view) { return DhtView::FromProto(view).status().code(); };
  v1::View bad = good;
  bad.set_epoch(10);
  EXPECT_EQ(code(bad), StatusCode::kDataLoss);
  bad = good;
  bad.set_frozen(true);
  EXPECT_EQ(code(bad), StatusCode::kDataLoss);
  bad = good;
  bad.mutable_nodes(0)->set_data_address("h:9");
  EXPECT_EQ(code(bad), StatusCode::kDataLoss);
  bad = good;
  (*bad.mutable_owners())[0] = 2;
  EXPECT_EQ(code(bad), StatusCode::kDataLoss);
}

TEST(DhtViewTest, MalformedViewsAreRefused) {
  v1::View good;
  Make(9, {Node(1), Node(2)}, Striped(2))->ToProto(&good);
  const auto code = [](const v1::View& view) { return DhtView::FromProto(view).status().code(); };
  v1::View bad = good;
  bad.mutable_owners()->pop_back();
  EXPECT_EQ(code(bad), StatusCode::kInvalidArgument);
  bad = good;
  (*bad.mutable_owners())[0] = 77;
  EXPECT_EQ(code(bad), StatusCode::kInvalidArgument);
  bad = good;
  bad.set_term(ViewVersion::kTermMax + 1);
  EXPECT_EQ(code(bad), StatusCode::kInvalidArgument);
  bad = good;
  while (bad.nodes_size() <= static_cast<int>(kSlotCount)) bad.add_nodes();
  EXPECT_EQ(code(bad), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(v1::View()), StatusCode::kInvalidArgument);
}

TEST(DhtViewTest, DeltaGivesTheSameViewAndKnowsItsBase) {
  const auto base = Make(1, {Node(1), Node(2)}, Striped(2));
  const auto next = Make(2, {Node(1), Node(2, 5), Node(3)}, Striped(3));
  v1::ViewDelta delta;
  next->ToDelta(*base, &delta);
  const auto applied = DhtView::Apply(*base, delta);
  ASSERT_TRUE(applied.ok()) << applied.status();
  EXPECT_EQ((*applied)->slots(), next->slots());
  EXPECT_EQ((*applied)->nodes(), next->nodes());
  EXPECT_EQ(DhtView::Apply(*next, delta).status().code(), StatusCode::kFailedPrecondition);
  v1::ViewDelta bad = delta;
  bad.set_slots(0, kSlotCount);
  EXPECT_EQ(DhtView::Apply(*base, bad).status().code(), StatusCode::kInvalidArgument);
  bad = delta;
  bad.add_slots(1);
  EXPECT_EQ(DhtView::Apply(*base, bad).status().code(), StatusCode::kInvalidArgument);
  bad = delta;
  bad.mutable_slots()->RemoveLast();
  bad.mutable_owners()->RemoveLast();
  EXPECT_EQ(DhtView::Apply(*base, bad).status().code(), StatusCode::kDataLoss);
}

}  // namespace
}  // namespace ems
