// What must hold: an epoch stays with a slot as long as its owner is the same node with the same
// storage, over every view; anything else begins anew.
#include "mp_controller/publish/next_history.h"

#include <gtest/gtest.h>

namespace ems::controller {
namespace {

constexpr uint64_t kId = 77;
constexpr uint64_t kOtherId = 78;

NodeInfo Node(uint32_t id, uint64_t lineage, uint64_t boot = 1) {
  NodeInfo node;
  node.id = NodeId(id);
  node.name = "n" + std::to_string(id);
  node.boot_id = boot;
  node.lineage = lineage;
  return node;
}

// A row of views, each with one owner of slot 0 and one of all others.
class Views {
 public:
  void Add(std::vector<NodeInfo> nodes, uint32_t first, uint32_t rest) {
    SlotTable slots;
    for (uint16_t i = 0; i < kSlotCount; ++i)
      slots.set_owner(SlotId(i), NodeId(i == 0 ? first : rest));
    ++epoch_;
    SlotHistory history = NextHistory(last_.get(), nodes, slots, epoch_, kId);
    last_ =
        *DhtView::Make(ViewVersion(1, epoch_), std::move(nodes), slots, false, std::move(history));
  }
  uint64_t first() const { return last_->history().since(SlotId(0)); }
  uint64_t rest() const { return last_->history().since(SlotId(kSlotCount - 1)); }

 private:
  uint64_t epoch_ = 0;
  std::shared_ptr<const DhtView> last_;
};

TEST(NextHistoryTest, StaysWithAnOwnerThatStays) {
  Views views;
  views.Add({Node(1, 5), Node(2, 6)}, 1, 2);
  for (uint64_t boot = 2; boot < 6; ++boot)
    views.Add({Node(1, 5, boot), Node(2, 6)}, 1, 2);  // a restart with what it stored
  EXPECT_EQ(views.first(), 1u);
  EXPECT_EQ(views.rest(), 1u);
}

TEST(NextHistoryTest, BeginsAnewWithAnotherOwnerAndWhenTheFirstOneIsBack) {
  Views views;
  const std::vector<NodeInfo> nodes = {Node(1, 5), Node(2, 6)};
  views.Add(nodes, 1, 2);
  views.Add(nodes, 2, 2);
  EXPECT_EQ(views.first(), 2u);
  views.Add(nodes, 1, 2);
  EXPECT_EQ(views.first(), 3u);
  EXPECT_EQ(views.rest(), 1u) << "the others have not moved";
}

TEST(NextHistoryTest, ALifeWithoutTheStorageIsAnotherOwner) {
  Views views;
  views.Add({Node(1, 5)}, 1, 1);
  views.Add({Node(1, 0, 2)}, 1, 1);
  EXPECT_EQ(views.first(), 2u);
  views.Add({Node(1, 5, 3)}, 1, 1);
  EXPECT_EQ(views.first(), 3u) << "later than all that 5 has stored";
  views.Add({Node(1, 9, 4)}, 1, 1);
  EXPECT_EQ(views.first(), 4u);
  views.Add({Node(1, 5, 5)}, 1, 1);
  EXPECT_EQ(views.first(), 5u);
}

// The one before may live on, with what it has in memory.
TEST(NextHistoryTest, AnotherProcessWithoutStorageIsAnotherOwner) {
  Views views;
  views.Add({Node(1, 0, 1)}, 1, 1);
  views.Add({Node(1, 0, 1)}, 1, 1);
  EXPECT_EQ(views.first(), 1u);
  views.Add({Node(1, 0, 2)}, 1, 1);
  EXPECT_EQ(views.first(), 3u);
  views.Add({Node(1, 7, 2)}, 1, 1);
  EXPECT_EQ(views.first(), 3u) << "the same process says now what it stores";
}

TEST(NextHistoryTest, ANodeThatWasOutOfTheViewBeginsAnew) {
  Views views;
  views.Add({Node(1, 5)}, 1, 1);
  views.Add({}, 0, 0);
  views.Add({Node(1, 5)}, 1, 1);
  EXPECT_EQ(views.first(), 3u);
}

TEST(NextHistoryTest, GoesOnAsTheOneBeforeAndBeginsWhereThereIsNone) {
  const std::vector<NodeInfo> nodes = {Node(1, 5)};
  SlotTable slots;
  const auto unknown = *DhtView::Make(ViewVersion(1, 6), nodes, slots, false);
  EXPECT_FALSE(unknown->history().known());
  const SlotHistory begun = NextHistory(unknown.get(), nodes, slots, 7, kId);
  EXPECT_EQ(begun.id(), kId);
  EXPECT_EQ(begun.since(SlotId(9)), 7u);
  const auto view = *DhtView::Make(ViewVersion(1, 7), nodes, slots, false, begun);
  EXPECT_EQ(NextHistory(view.get(), nodes, slots, 8, kOtherId).id(), kId);
}

TEST(NextHistoryTest, SaysWhoHadASlotBefore) {
  SlotTable slots;
  for (uint16_t i = 0; i < kSlotCount; ++i) slots.set_owner(SlotId(i), NodeId(1));
  const std::vector<NodeInfo> nodes = {Node(1, 5), Node(2, 0)};
  const auto next = [&](const DhtView* before, uint64_t epoch, uint64_t boot) {
    std::vector<NodeInfo> shown = {nodes[0], Node(2, 0, boot)};
    SlotHistory history = NextHistory(before, shown, slots, epoch, kId);
    std::vector<NodeId> previous = PreviousOwners(before, slots, history);
    return *DhtView::Make(ViewVersion(1, epoch), std::move(shown), slots, false, std::move(history),
                          kNoCluster, std::move(previous));
  };
  const auto first = next(nullptr, 1, 1);
  EXPECT_EQ(first->PreviousId(SlotId(0)), kNoNode);
  slots.set_owner(SlotId(0), NodeId(2));
  const auto second = next(first.get(), 2, 1);
  EXPECT_EQ(second->PreviousId(SlotId(0)), NodeId(1));
  EXPECT_EQ(second->PreviousId(SlotId(1)), kNoNode);
  const auto third = next(second.get(), 3, 1);
  EXPECT_EQ(third->PreviousId(SlotId(0)), NodeId(1)) << "until it moves again";
  const auto fourth = next(third.get(), 4, 2);
  EXPECT_EQ(fourth->PreviousId(SlotId(0)), kNoNode) << "its process before has lost it all";
}

}  // namespace
}  // namespace ems::controller
