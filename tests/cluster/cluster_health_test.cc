// What must hold: one sick server degrades a cluster, and what passes by itself does not.
#include "cluster/cluster_health.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "cluster/dht_view.h"
#include "proto/controller.pb.h"

namespace ems {
namespace {

// Two live servers of the view 3.7, of which `node_` is one.
class ClusterHealthTest : public ::testing::Test {
 protected:
  ClusterHealthTest() {
    nodes_.set_heartbeat_ms(1000);
    nodes_.set_lease_ms(5000);
    for (const uint32_t id : {1U, 2U}) {
      node_ = nodes_.add_nodes();
      node_->mutable_node()->set_id(id);
      node_->mutable_node()->set_state(v1::NODE_LIVE);
      node_->set_slots(8192);
      node_->set_term(3);
      node_->set_epoch(7);
    }
    view_ = MakeView(false);
  }
  static std::shared_ptr<const DhtView> MakeView(bool frozen) {
    std::vector<NodeInfo> infos(1);
    infos[0].id = NodeId(1);
    SlotTable slots;
    for (uint16_t slot = 0; slot < kSlotCount; ++slot) slots.set_owner(SlotId(slot), NodeId(1));
    return *DhtView::Make(ViewVersion(3, 7), infos, slots, frozen);
  }
  Health Now() const { return HealthOf(nodes_, view_.get()); }
  bool sick() const { return IsSick(*node_, nodes_, view_.get()); }

  v1::ListNodesReply nodes_;
  v1::NodeStatus* node_ = nullptr;
  std::shared_ptr<const DhtView> view_;
};

TEST_F(ClusterHealthTest, AServerThatIsDownIsSickAndOneThatLeftIsNot) {
  EXPECT_EQ(HealthWord(Now()), "OK");
  node_->mutable_node()->set_state(v1::NODE_DOWN);
  EXPECT_TRUE(sick());
  EXPECT_EQ(HealthWord(Now()), "DEGRADED");
  node_->mutable_node()->set_state(v1::NODE_LEFT);
  node_->set_ahead(true);
  node_->mutable_usage()->set_ssd_state(v1::SSD_OFFLINE);
  EXPECT_FALSE(sick());
  EXPECT_EQ(Now(), Health::kOk);
}

TEST_F(ClusterHealthTest, OneThatIsAheadIsSick) {
  node_->set_ahead(true);
  EXPECT_TRUE(sick());
  EXPECT_EQ(Now(), Health::kDegraded);
}

TEST_F(ClusterHealthTest, OneWhoseSsdTierDoesNotWorkIsSick) {
  node_->mutable_usage()->set_ssd_state(v1::SSD_OK);
  EXPECT_FALSE(sick());
  for (const v1::SsdState state : {v1::SSD_DEGRADED, v1::SSD_OFFLINE}) {
    node_->mutable_usage()->set_ssd_state(state);
    EXPECT_TRUE(sick());
  }
  EXPECT_EQ(Now(), Health::kDegraded);
}

TEST_F(ClusterHealthTest, AnOwnerMayBeBehindForTwoHeartbeats) {
  node_->set_epoch(6);
  node_->set_behind_ms(2000);
  EXPECT_FALSE(sick());
  node_->set_behind_ms(2001);
  EXPECT_TRUE(sick());
  EXPECT_EQ(Now(), Health::kDegraded);
  node_->set_slots(0);
  EXPECT_FALSE(sick()) << "nobody waits for it";
}

TEST_F(ClusterHealthTest, OneMayBeWaitedForALeaseAndTwoSeconds) {
  node_->set_waited_for(true);
  node_->set_waiting_ms(7000);
  EXPECT_FALSE(sick());
  node_->set_waiting_ms(7001);
  EXPECT_TRUE(sick());
  EXPECT_EQ(Now(), Health::kDegraded);
}

TEST_F(ClusterHealthTest, AnOldStoreDegrades) {
  nodes_.set_store_is_old(true);
  EXPECT_EQ(Now(), Health::kDegraded);
}

TEST_F(ClusterHealthTest, AFrozenViewIsWorseThanNoServers) {
  EXPECT_EQ(HealthOf(nodes_, nullptr), Health::kNoServers);
  for (v1::NodeStatus& node : *nodes_.mutable_nodes()) {
    node.mutable_node()->set_state(v1::NODE_DOWN);
  }
  EXPECT_EQ(HealthWord(Now()), "NO SERVERS");
  view_ = MakeView(true);
  EXPECT_EQ(HealthWord(Now()), "FROZEN");
}

}  // namespace
}  // namespace ems
