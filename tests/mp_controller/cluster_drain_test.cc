// What must hold: a drain is durable and holds for each process of a name; it moves slots by views
// that become active as all others do; and a process that stops hears when it may.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/mp_controller/cluster_life.h"
#include "tests/mp_controller/temp_dir.h"

namespace ems::controller {
namespace {

using std::chrono::seconds;

class ClusterDrainTest : public ::testing::Test {
 protected:
  // Three servers that have slots.
  void Begin() {
    life_ = std::make_unique<ClusterLife>(dir_.path(), &clock_);
    for (const char* name : {"a", "b", "c"}) ids_.push_back(life_->Register(name, 1));
    life_->Run(seconds(1));
    BeatAll();
    ASSERT_EQ(SlotsOf(0) + SlotsOf(1) + SlotsOf(2), kSlotCount);
  }
  v1::HeartbeatReply Beat(size_t server) {
    return life_->Beat(ids_[server], boots_[server], life_->publisher.view()->version());
  }
  void BeatAll() {
    for (size_t i = 0; i < ids_.size(); ++i) (void)Beat(i);
  }
  Status Drain(const std::string& name, bool cancel = false) {
    v1::DrainNodeRequest request;
    request.set_name(name);
    request.set_cancel(cancel);
    v1::DrainNodeReply reply;
    return life_->state->DrainNode(request, &reply);
  }
  v1::NodeStatus StatusOf(size_t server) {
    v1::ListNodesReply list;
    EXPECT_TRUE(life_->state->ListNodes({}, &list).ok());
    for (const v1::NodeStatus& one : list.nodes())
      if (one.node().id() == ids_[server]) return one;
    return {};
  }
  uint32_t SlotsOf(size_t server) {
    return life_->publisher.view()->slots().CountOf(NodeId(ids_[server]));
  }
  bool IsShown(size_t server) {
    return life_->publisher.view()->Find(NodeId(ids_[server])) != nullptr;
  }

  TempDir dir_;
  ManualClock clock_;
  std::unique_ptr<ClusterLife> life_;
  std::vector<uint32_t> ids_;
  std::vector<uint64_t> boots_ = {1, 1, 1};
};

TEST_F(ClusterDrainTest, ItsSlotsGoToOthersWhileItStaysAndThenItIsDrained) {
  Begin();
  EXPECT_EQ(StatusOf(1).drain(), v1::DRAIN_NONE);
  ASSERT_EQ(Drain("b"), OkStatus());
  EXPECT_EQ(StatusOf(1).drain(), v1::DRAIN_DRAINING);
  life_->Run(seconds(1));
  EXPECT_EQ(SlotsOf(1), 0u);
  EXPECT_TRUE(IsShown(1)) << "others ask it for what it keeps";
  EXPECT_EQ(StatusOf(1).pulled_by(), 2u);
  life_->pulling_from = {ids_[1]};
  BeatAll();
  EXPECT_EQ(StatusOf(1).drain(), v1::DRAIN_DRAINING);
  life_->pulling_from = {};
  (void)Beat(0);
  EXPECT_EQ(StatusOf(1).pulled_by(), 1u);
  (void)Beat(2);
  EXPECT_EQ(StatusOf(1).drain(), v1::DRAIN_DRAINED);
  ASSERT_EQ(Drain("b", /*cancel=*/true), OkStatus());
  BeatAll();
  life_->Run(seconds(1));
  EXPECT_GT(SlotsOf(1), kSlotCount / 4);
  EXPECT_EQ(StatusOf(1).drain(), v1::DRAIN_NONE);
}

// The rule that keeps two servers from taking Puts of one slot does not know of drains.
TEST_F(ClusterDrainTest, NewOwnersTakePutsOnlyWhenTheDrainedOneHasInstalledTheView) {
  Begin();
  const uint64_t before = Beat(0).active_epoch();
  ASSERT_EQ(Drain("b"), OkStatus());
  life_->Run(seconds(1));
  const ViewVersion next = life_->publisher.view()->version();
  ASSERT_GT(next.epoch(), before);
  EXPECT_EQ(Beat(0).active_epoch(), before);
  EXPECT_EQ(Beat(2).active_epoch(), before);
  EXPECT_EQ(StatusOf(1).drain(), v1::DRAIN_DRAINING);
  (void)Beat(1);
  EXPECT_EQ(Beat(0).active_epoch(), next.epoch());
  EXPECT_EQ(StatusOf(1).drain(), v1::DRAIN_DRAINED);
}

TEST_F(ClusterDrainTest, ItHoldsForTheNextControllerAndTheNextProcessUntilItIsCancelled) {
  Begin();
  ASSERT_EQ(Drain("b"), OkStatus());
  life_->Run(seconds(1));
  BeatAll();
  life_->Leave(ids_[1], 1);
  life_->Run(seconds(1));
  ASSERT_FALSE(IsShown(1));
  EXPECT_EQ(StatusOf(1).drain(), v1::DRAIN_DRAINED);
  life_.reset();
  life_ = std::make_unique<ClusterLife>(dir_.path(), &clock_);
  for (const size_t server : {size_t{0}, size_t{2}})
    (void)life_->Register(server == 0 ? "a" : "c", 1);
  boots_[1] = 2;
  ASSERT_EQ(life_->Register("b", 2), ids_[1]);
  life_->FinishListening();
  for (int i = 0; i < 100 && !IsShown(1); ++i) {
    BeatAll();
    life_->Run(std::chrono::milliseconds(200));
  }
  ASSERT_TRUE(IsShown(1));
  EXPECT_EQ(SlotsOf(1), 0u);
  BeatAll();
  EXPECT_EQ(StatusOf(1).drain(), v1::DRAIN_DRAINED);
  ASSERT_EQ(Drain("b", /*cancel=*/true), OkStatus());
  BeatAll();
  life_->Run(seconds(2));
  EXPECT_GT(SlotsOf(1), 0u);
}

TEST_F(ClusterDrainTest, AProcessThatStopsHearsWhenOthersHaveItsSlots) {
  Begin();
  life_->stopping = true;
  EXPECT_FALSE(Beat(1).may_stop());
  life_->stopping = false;
  EXPECT_TRUE(StatusOf(1).stopping());
  EXPECT_FALSE(StatusOf(1).node().drained()) << "no operator said so";
  life_->Run(seconds(1));
  EXPECT_EQ(SlotsOf(1), 0u);
  EXPECT_TRUE(IsShown(1));
  life_->stopping = true;
  EXPECT_FALSE(Beat(1).may_stop()) << "the others have not got them yet";
  life_->stopping = false;
  (void)Beat(0);
  (void)Beat(2);
  life_->stopping = true;
  EXPECT_TRUE(Beat(1).may_stop());
  life_->Leave(ids_[1], 1);
  life_->stopping = false;
  (void)Beat(0);
  (void)Beat(2);
  life_->Run(seconds(1));
  EXPECT_FALSE(IsShown(1));
  EXPECT_EQ(StatusOf(1).drain(), v1::DRAIN_NONE);
  EXPECT_EQ(StatusOf(1).node().state(), v1::NODE_LEFT);
}

TEST_F(ClusterDrainTest, WhereAllStopNobodyWaits) {
  Begin();
  life_->stopping = true;
  EXPECT_FALSE(Beat(0).may_stop());
  EXPECT_FALSE(Beat(1).may_stop());
  EXPECT_TRUE(Beat(2).may_stop());
  EXPECT_TRUE(Beat(0).may_stop());
  const ViewVersion before = life_->publisher.view()->version();
  life_->Run(seconds(1));
  EXPECT_EQ(life_->publisher.view()->version(), before);
}

TEST_F(ClusterDrainTest, WhatCannotBeDrainedIsRefused) {
  Begin();
  EXPECT_EQ(Drain("d").code(), StatusCode::kNotFound);
  ASSERT_EQ(Drain("a"), OkStatus());
  ASSERT_EQ(Drain("a"), OkStatus()) << "once more";
  ASSERT_EQ(Drain("b"), OkStatus());
  EXPECT_EQ(Drain("c").code(), StatusCode::kFailedPrecondition);
  ASSERT_EQ(Drain("a", /*cancel=*/true), OkStatus());
  EXPECT_EQ(Drain("c"), OkStatus());
}

TEST_F(ClusterDrainTest, OneThatIsDownIsDrainedAndForgottenWithItsName) {
  Begin();
  life_->Leave(ids_[1], 1);
  life_->Run(seconds(1));
  ASSERT_EQ(Drain("b"), OkStatus());
  EXPECT_EQ(StatusOf(1).drain(), v1::DRAIN_DRAINED);
  v1::RemoveNodeRequest remove;
  remove.set_name("b");
  v1::RemoveNodeReply removed;
  ASSERT_EQ(life_->state->RemoveNode(remove, &removed), OkStatus());
  ids_[1] = life_->Register("b", 9);
  boots_[1] = 9;
  BeatAll();
  life_->Run(seconds(1));
  EXPECT_GT(SlotsOf(1), 0u) << "another server of that name";
}

}  // namespace
}  // namespace ems::controller
