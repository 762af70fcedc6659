#include "cluster/dht_view.h"

#include <gtest/gtest.h>

#include <functional>

#include "cluster/packed_slots.h"
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

// Packed slots after `change` of the first of them.
std::string Changed(const std::string& packed, const std::function<void(HeldSlot*)>& change) {
  std::vector<HeldSlot> slots = *UnpackSlots(packed);
  change(&slots.front());
  return PackSlots(slots);
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
  bad.set_slots(Changed(proto.slots(), [](HeldSlot* held) { ++held->age; }));
  EXPECT_EQ(DhtView::FromProto(bad).status().code(), StatusCode::kDataLoss);
  bad = proto;
  bad.mutable_nodes(0)->set_lineage(12);
  EXPECT_EQ(DhtView::FromProto(bad).status().code(), StatusCode::kDataLoss);
  bad = proto;
  bad.set_slots(Changed(proto.slots(), [](HeldSlot* held) { held->age = 10; }));
  EXPECT_EQ(DhtView::FromProto(bad).status().code(), StatusCode::kInvalidArgument)
      << "before the first view";
  bad = proto;
  bad.clear_history();
  EXPECT_EQ(DhtView::FromProto(bad).status().code(), StatusCode::kInvalidArgument);
}

TEST(DhtViewTest, OneWithoutAHistoryIsAViewAllTheSame) {
  v1::View proto;
  MakeWith(9, {}, 0)->ToProto(&proto);
  const auto back = DhtView::FromProto(proto);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_FALSE((*back)->history().known());
}

TEST(DhtViewTest, ADeltaNamesSlotsThatHaveAnotherHistory) {
  const auto base = MakeWith(9, History(5, 9, 2, 9), 11);
  const auto next = MakeWith(12, History(5, 9, 11, 12), 11);  // the odd ones went and came back
  v1::ViewDelta delta;
  next->ToDelta(*base, &delta);
  EXPECT_EQ(UnpackSlots(delta.slots())->size(), kSlotCount / 2);
  const auto applied = DhtView::Apply(*base, delta);
  ASSERT_TRUE(applied.ok()) << applied.status();
  EXPECT_EQ((*applied)->history(), next->history());
  v1::ViewDelta bad = delta;
  bad.set_slots(Changed(delta.slots(), [](HeldSlot* held) { ++held->age; }));
  EXPECT_EQ(DhtView::Apply(*base, bad).status().code(), StatusCode::kDataLoss);
  bad = delta;
  bad.mutable_slots()->pop_back();
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
  bad.set_slots(Changed(good.slots(), [](HeldSlot* held) { held->owner = NodeId(2); }));
  EXPECT_EQ(code(bad), StatusCode::kDataLoss);
}

TEST(DhtViewTest, MalformedViewsAreRefused) {
  v1::View good;
  Make(9, {Node(1), Node(2)}, Striped(2))->ToProto(&good);
  const auto code = [](const v1::View& view) { return DhtView::FromProto(view).status().code(); };
  v1::View bad = good;
  bad.mutable_slots()->pop_back();
  EXPECT_EQ(code(bad), StatusCode::kInvalidArgument);
  bad = good;
  bad.set_slots(Changed(good.slots(), [](HeldSlot* held) { held->owner = NodeId(77); }));
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
  bad.mutable_slots()->push_back('x');
  EXPECT_EQ(DhtView::Apply(*base, bad).status().code(), StatusCode::kInvalidArgument);
  bad = delta;
  bad.set_slots(Changed(delta.slots(), [](HeldSlot* held) { held->owner = NodeId(2); }));
  EXPECT_EQ(DhtView::Apply(*base, bad).status().code(), StatusCode::kDataLoss);
}

TEST(DhtViewTest, TheClusterIsCoveredAndOutlivesDeltas) {
  const auto history = *SlotHistory::Make(5, std::vector<uint64_t>(kSlotCount, 1), 2);
  const auto view =
      *DhtView::Make(ViewVersion(1, 2), {Node(1)}, Striped(1), false, history, ClusterId(9));
  v1::View proto;
  view->ToProto(&proto);
  EXPECT_EQ((*DhtView::FromProto(proto))->cluster(), ClusterId(9));
  const auto next =
      *DhtView::Make(ViewVersion(1, 3), {Node(1)}, Striped(1), true, history, ClusterId(9));
  v1::ViewDelta delta;
  next->ToDelta(*view, &delta);
  const auto applied = DhtView::Apply(*view, delta);
  ASSERT_TRUE(applied.ok()) << applied.status();
  EXPECT_EQ((*applied)->cluster(), ClusterId(9));
  proto.set_cluster(10);
  EXPECT_EQ(DhtView::FromProto(proto).status().code(), StatusCode::kDataLoss);
}

TEST(DhtViewTest, ADeltaCarriesNodesThatChangedAndNoOthers) {
  const auto base = Make(1, {Node(1), Node(2), Node(4), Node(7)}, Striped(2));
  const auto next = Make(2, {Node(1), Node(2, 5), Node(3), Node(7), Node(9)}, Striped(2));
  v1::ViewDelta delta;
  next->ToDelta(*base, &delta);
  ASSERT_EQ(delta.nodes_size(), 3);
  EXPECT_EQ(delta.nodes(0).id(), 2u);
  EXPECT_EQ(delta.nodes(1).id(), 3u);
  EXPECT_EQ(delta.nodes(2).id(), 9u);
  ASSERT_EQ(delta.removed_size(), 1);
  EXPECT_EQ(delta.removed(0), 4u);
  EXPECT_TRUE(delta.slots().empty());
  const auto applied = DhtView::Apply(*base, delta);
  ASSERT_TRUE(applied.ok()) << applied.status();
  EXPECT_EQ((*applied)->nodes(), next->nodes());
  EXPECT_EQ((*applied)->Fingerprint(), next->Fingerprint());
}

TEST(DhtViewTest, ADeltaWhoseNodesMakeNoSenseIsRefused) {
  const auto base = Make(1, {Node(1), Node(2), Node(4)}, Striped(2));
  const auto next = Make(2, {Node(1), Node(2, 5), Node(3)}, Striped(2));
  v1::ViewDelta good;
  next->ToDelta(*base, &good);
  ASSERT_TRUE(DhtView::Apply(*base, good).ok());
  const auto code = [&](const v1::ViewDelta& d) {
    return DhtView::Apply(*base, d).status().code();
  };
  v1::ViewDelta bad = good;
  bad.add_removed(5);
  EXPECT_EQ(code(bad), StatusCode::kInvalidArgument) << "it is not there";
  bad = good;
  bad.mutable_nodes()->SwapElements(0, 1);
  EXPECT_EQ(code(bad), StatusCode::kInvalidArgument) << "out of order";
  bad = good;
  bad.set_removed(0, 2);
  EXPECT_EQ(code(bad), StatusCode::kDataLoss) << "another one is taken away";
  bad = good;
  bad.clear_removed();
  EXPECT_EQ(code(bad), StatusCode::kDataLoss);
  bad = good;
  bad.mutable_nodes(0)->set_boot_id(6);
  EXPECT_EQ(code(bad), StatusCode::kDataLoss);
}

// Who had slots before travels with views and deltas, as long as it is of use; who cannot read it
// has the same view.
TEST(DhtViewTest, PreviousOwnersAreAHintThatTravels) {
  std::vector<NodeId> previous(kSlotCount, kNoNode);
  previous[0] = previous[1] = NodeId(7);
  const auto make = [&](uint64_t epoch, uint64_t even, std::vector<NodeId> before) {
    return *DhtView::Make(ViewVersion(3, epoch), {Node(1), Node(2)}, Striped(2), false,
                          History(4, even, 1, epoch), kNoCluster, std::move(before));
  };
  const auto base = make(100, 1, {});
  const auto moved = make(101, 101, previous);
  EXPECT_EQ(base->PreviousId(SlotId(0)), kNoNode);
  EXPECT_EQ(moved->PreviousId(SlotId(0)), NodeId(7));
  EXPECT_EQ(moved->Fingerprint(), make(101, 101, {})->Fingerprint());

  v1::View whole;
  moved->ToProto(&whole);
  const auto back = DhtView::FromProto(whole);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ((*back)->PreviousId(SlotId(0)), NodeId(7));
  EXPECT_EQ((*back)->PreviousId(SlotId(1)), kNoNode) << "it moved long ago";
  whole.set_previous("nonsense");
  EXPECT_TRUE(DhtView::FromProto(whole).ok());
  whole.clear_previous();
  EXPECT_TRUE(DhtView::FromProto(whole).ok());

  v1::ViewDelta delta;
  moved->ToDelta(*base, &delta);
  auto applied = DhtView::Apply(*base, delta);
  ASSERT_TRUE(applied.ok()) << applied.status();
  EXPECT_EQ((*applied)->PreviousId(SlotId(0)), NodeId(7));
  const auto again = make(102, 102, {});  // another owner, and it is not known who was before
  v1::ViewDelta next;
  again->ToDelta(**applied, &next);
  applied = DhtView::Apply(**applied, next);
  ASSERT_TRUE(applied.ok()) << applied.status();
  EXPECT_EQ((*applied)->PreviousId(SlotId(0)), kNoNode);
}

}  // namespace
}  // namespace ems
