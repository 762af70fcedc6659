// What must hold: a server that is drained gets no slots as long as another one can have them, and
// counts as drained only when its view is active and nobody fetches from it any more, or its time
// is over.
#include "mp_controller/publish/drains.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "mp_controller/publish/view_builder.h"

namespace ems::controller {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;

constexpr NodeId kA(1), kB(2), kC(3);

class DrainsTest : public ::testing::Test {
 protected:
  DrainsTest() { Publish({kA, kB, kC}); }
  static std::vector<NodeInfo> NodesOf(const std::vector<NodeId>& ids) {
    std::vector<NodeInfo> nodes;
    for (const NodeId id : ids) {
      NodeInfo& node = nodes.emplace_back();
      node.id = id;
      node.boot_id = 10 + id.value();
      node.capacity_bytes = 1 << 30;
    }
    return nodes;
  }
  // The next view, as the controller makes it.
  void Publish(const std::vector<NodeId>& ids) {
    const std::vector<NodeInfo> nodes = NodesOf(ids);
    const SlotTable slots =
        BuildSlotsOf(view_ ? view_->slots() : SlotTable(), drains_.OwnersOf(nodes));
    view_ = *DhtView::Make({1, ++epoch_}, nodes, slots, false);
    drains_.OnPublished(*view_, true, now_);
  }
  bool IsDueAfter(Duration time) {
    (void)drains_.IsDue(*view_, now_);
    now_ += time;
    return drains_.IsDue(*view_, now_);
  }
  // They have the newest view, and say what they fetch.
  void Say(NodeId id, const std::vector<NodeId>& pulling_from = {}, bool stopping = false,
           const std::vector<NodeId>& vouching_for = {}) {
    drains_.OnWord(id, {10 + id.value(), view_->version(), stopping, pulling_from, vouching_for});
  }
  DrainStatus StatusOf(NodeId id) { return drains_.StatusOf(id, *view_, active(), now_); }
  ViewVersion active() const { return is_active_ ? view_->version() : ViewVersion(1, epoch_ - 1); }
  std::vector<uint32_t> Slots() const {
    std::vector<uint32_t> counts;
    for (const NodeInfo& node : view_->nodes()) counts.push_back(view_->slots().CountOf(node.id));
    return counts;
  }

  TimePoint now_ = TimePoint(seconds(100));
  Drains drains_{{.settle = milliseconds(200), .patience = seconds(60)}};
  std::shared_ptr<const DhtView> view_;
  uint64_t epoch_ = 0;
  bool is_active_ = true;
};

TEST_F(DrainsTest, WithoutADrainNothingIsDue) {
  EXPECT_FALSE(IsDueAfter(seconds(1)));
  EXPECT_EQ(StatusOf(kA).state, DrainState::kNone);
}

TEST_F(DrainsTest, ItsSlotsGoToOthersWhileItStaysInTheView) {
  drains_.Set(kB, true);
  EXPECT_EQ(StatusOf(kB).state, DrainState::kDraining);
  EXPECT_FALSE(IsDueAfter(milliseconds(100))) << "changes of a moment make one view";
  EXPECT_TRUE(IsDueAfter(milliseconds(100)));
  Publish({kA, kB, kC});
  EXPECT_THAT(Slots(), ElementsAre(8192, 0, 8192));
  EXPECT_FALSE(IsDueAfter(seconds(1)));
  drains_.Set(kB, false);
  EXPECT_TRUE(IsDueAfter(seconds(1)));
  Publish({kA, kB, kC});
  EXPECT_GT(Slots()[1], 5000u);
  EXPECT_EQ(StatusOf(kB).state, DrainState::kNone);
}

TEST_F(DrainsTest, ItIsDrainedWhenAllHaveTheViewAndNobodyFetchesFromIt) {
  drains_.Set(kB, true);
  Say(kA);
  Say(kB);
  Say(kC);
  Publish({kA, kB, kC});
  EXPECT_EQ(StatusOf(kB).pulled_by, 2u) << "who has not installed the view may begin to fetch";
  Say(kA);
  Say(kC, {kA, kB});
  EXPECT_EQ(StatusOf(kB).state, DrainState::kDraining);
  EXPECT_EQ(StatusOf(kB).pulled_by, 1u);
  Say(kC, {kA});
  is_active_ = false;
  EXPECT_EQ(StatusOf(kB).state, DrainState::kDraining) << "it may take Puts still";
  is_active_ = true;
  EXPECT_EQ(StatusOf(kB).state, DrainState::kDrained);
  EXPECT_EQ(StatusOf(kB).pulled_by, 0u);
}

// Its slots went on before their first new owner had fetched what it keeps: the next one has to ask
// it, and does not know that yet.
TEST_F(DrainsTest, ItIsNotDrainedWhileWhoeverHasItsSlotsNowIsSentOnToIt) {
  drains_.Set(kB, true);
  Publish({kA, kB, kC});
  Say(kB);
  Say(kC);
  Say(kA, {kB});
  drains_.Set(kA, true);
  Publish({kA, kB, kC});
  Say(kC, {kA});
  EXPECT_EQ(StatusOf(kB).pulled_by, 1u) << "as kA said by the view before";
  Say(kA, {}, false, {kB});
  EXPECT_EQ(StatusOf(kB).state, DrainState::kDraining);
  EXPECT_EQ(StatusOf(kB).pulled_by, 1u);
  Say(kC);
  EXPECT_EQ(StatusOf(kB).state, DrainState::kDrained);
}

TEST_F(DrainsTest, ItIsDrainedAfterItsTimeWhoeverStillFetches) {
  drains_.Set(kB, true);
  Publish({kA, kB, kC});
  Say(kA);
  Say(kC, {kB});
  now_ += seconds(59);
  EXPECT_EQ(StatusOf(kB).state, DrainState::kDraining);
  now_ += seconds(1);
  EXPECT_EQ(StatusOf(kB).state, DrainState::kDrained);
  EXPECT_EQ(StatusOf(kB).pulled_by, 1u);
}

TEST_F(DrainsTest, OneThatIsNotInTheViewIsDrainedAndHasNoSlotsWhenItComesBack) {
  drains_.Set(kB, true);
  Publish({kA, kC});
  EXPECT_EQ(StatusOf(kB).state, DrainState::kDrained);
  Publish({kA, kB, kC});
  EXPECT_EQ(Slots()[1], 0u);
  EXPECT_FALSE(IsDueAfter(seconds(1)));
}

TEST_F(DrainsTest, AProcessThatStopsGivesUpItsSlotsAndTheNextOneGetsThem) {
  Say(kB, {}, /*stopping=*/true);
  EXPECT_TRUE(StatusOf(kB).stopping);
  EXPECT_FALSE(StatusOf(kB).may_stop);
  EXPECT_TRUE(IsDueAfter(milliseconds(200)));
  Publish({kA, kB, kC});
  EXPECT_EQ(Slots()[1], 0u);
  Say(kA);
  Say(kC);
  EXPECT_TRUE(StatusOf(kB).may_stop);
  std::vector<NodeInfo> next = NodesOf({kA, kB, kC});
  next[1].boot_id = 77;
  EXPECT_EQ(drains_.OwnersOf(next).size(), 3u) << "another process of that name";
}

TEST_F(DrainsTest, NoSlotIsLeftWithoutAnOwner) {
  drains_.Set(kA, true);
  drains_.Set(kB, true);
  drains_.Set(kC, true);
  Publish({kA, kB, kC});
  EXPECT_THAT(Slots(), ::testing::Each(::testing::Gt(0u)));
  Say(kB, {}, /*stopping=*/true);
  EXPECT_FALSE(StatusOf(kB).may_stop) << "the others are to have its slots";
  Publish({kA, kB, kC});
  EXPECT_THAT(Slots(), ElementsAre(8192, 0, 8192)) << "those whose processes go on";
  Say(kA, {}, true);
  Say(kC, {}, true);
  EXPECT_FALSE(IsDueAfter(seconds(1))) << "all stop: there is nowhere to go";
  EXPECT_TRUE(StatusOf(kA).may_stop);
  EXPECT_EQ(drains_.OwnersOf(view_->nodes()).size(), 3u);
}

TEST_F(DrainsTest, TheLastOneIsNotDrained) {
  EXPECT_EQ(drains_.Check(kA, *view_), OkStatus());
  drains_.Set(kB, true);
  Say(kC, {}, /*stopping=*/true);
  EXPECT_EQ(drains_.Check(kA, *view_).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(drains_.Check(NodeId(9), *view_), OkStatus()) << "it owns nothing";
}

TEST_F(DrainsTest, InAFrozenViewNoSlotMoves) {
  view_ = *DhtView::Make({1, ++epoch_}, view_->nodes(), view_->slots(), true);
  drains_.OnPublished(*view_, false, now_);
  drains_.Set(kB, true);
  EXPECT_FALSE(IsDueAfter(seconds(1)));
  Say(kB, {}, true);
  EXPECT_TRUE(StatusOf(kB).may_stop) << "it would wait in vain";
}

// What a start finds is a view of an earlier life, whose drains may have changed since.
TEST_F(DrainsTest, AfterARestartWhatIsNotAsItShouldBeIsDue) {
  drains_.Set(kB, true);
  Publish({kA, kB, kC});
  Drains same{{.settle = milliseconds(200)}};
  same.Set(kB, true);
  same.OnPublished(*view_, false, now_);
  EXPECT_FALSE(same.IsDue(*view_, now_));
  EXPECT_FALSE(same.IsDue(*view_, now_ + seconds(1)));
  Drains cancelled{{.settle = milliseconds(200)}};
  cancelled.OnPublished(*view_, false, now_);
  EXPECT_FALSE(cancelled.IsDue(*view_, now_));
  EXPECT_TRUE(cancelled.IsDue(*view_, now_ + seconds(1)));
  Drains more{{.settle = milliseconds(200)}};
  more.Set(kB, true);
  more.Set(kC, true);
  more.OnPublished(*view_, false, now_);
  EXPECT_FALSE(more.IsDue(*view_, now_));
  EXPECT_TRUE(more.IsDue(*view_, now_ + seconds(1)));
}

TEST_F(DrainsTest, WhatIsForgottenIsNotDrained) {
  drains_.Set(kB, true);
  drains_.Forget(kB);
  EXPECT_FALSE(drains_.IsSet(kB));
  EXPECT_EQ(drains_.OwnersOf(view_->nodes()).size(), 3u);
}

}  // namespace
}  // namespace ems::controller
