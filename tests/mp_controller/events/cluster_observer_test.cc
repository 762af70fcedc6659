// What must hold: what became of servers and views is told once, in order, and what was there at
// the start is not told.
#include "mp_controller/events/cluster_observer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cluster/dht_view.h"
#include "proto/controller.pb.h"

namespace ems::controller {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class ClusterObserverTest : public ::testing::Test {
 protected:
  v1::NodeStatus* Node(const std::string& name, v1::NodeState state, uint64_t boot_id = 1) {
    v1::NodeStatus* node = nullptr;
    for (v1::NodeStatus& one : *nodes_.mutable_nodes())
      if (one.node().name() == name) node = &one;
    if (node == nullptr) node = nodes_.add_nodes();
    node->mutable_node()->set_name(name);
    node->mutable_node()->set_state(state);
    node->mutable_node()->set_boot_id(boot_id);
    return node;
  }
  static ClusterObserver::View MakeView(uint64_t epoch, const std::vector<std::string>& names,
                                        bool frozen = false) {
    std::vector<NodeInfo> nodes;
    for (const std::string& name : names) {
      NodeInfo info;
      info.id = NodeId(static_cast<uint32_t>(name[0]));
      info.name = name;
      info.boot_id = 1;
      info.data_address = "h:1";
      nodes.push_back(std::move(info));
    }
    return *DhtView::Make({1, epoch}, std::move(nodes), SlotTable(), frozen);
  }
  // Kinds of what is new by this look; texts_ has the sentences.
  std::vector<std::string> Look(ClusterObserver::View view = nullptr) {
    observer_.Look(nodes_, std::move(view));
    v1::ListEventsRequest request;
    request.set_run(run_);
    request.set_after(after_);
    v1::ListEventsReply reply;
    events_.List(request, &reply);
    run_ = reply.run();
    std::vector<std::string> kinds;
    texts_.clear();
    for (const v1::ClusterEvent& event : reply.events()) {
      after_ = event.sequence();
      kinds.push_back(event.kind());
      texts_ += event.text() + "\n";
    }
    return kinds;
  }

  ManualClock clock_;
  MetricsRegistry registry_;
  DrainMetrics metrics_{&registry_};
  ClusterEvents events_;
  ClusterObserver observer_{&events_, &metrics_, &clock_};
  v1::ListNodesReply nodes_;
  uint64_t run_ = 0, after_ = 0;
  std::string texts_;
};

TEST_F(ClusterObserverTest, WhatWasThereBeforeIsNotTold) {
  Node("a", v1::NODE_LIVE)->mutable_usage()->set_damaged_objects(3);
  Node("b", v1::NODE_DOWN)->mutable_usage()->set_ssd_state(v1::SSD_DEGRADED);
  EXPECT_THAT(Look(MakeView(1, {"a"}, true)), IsEmpty());
  EXPECT_THAT(Look(MakeView(1, {"a"}, true)), ElementsAre("view_published"));
}

TEST_F(ClusterObserverTest, ServersJoinAreLostComeBackLeaveAndAreForgotten) {
  EXPECT_THAT(Look(), IsEmpty());
  Node("a", v1::NODE_LIVE);
  EXPECT_THAT(Look(), ElementsAre("node_joined"));
  EXPECT_THAT(Look(), IsEmpty());
  Node("a", v1::NODE_DOWN)->set_heartbeat_age_ms(5100);
  EXPECT_THAT(Look(), ElementsAre("node_lost"));
  EXPECT_THAT(texts_, HasSubstr("it was last heard of 5.1 s ago"));
  Node("a", v1::NODE_LIVE, 2);
  EXPECT_THAT(Look(), ElementsAre("node_joined"));
  EXPECT_THAT(texts_, HasSubstr("has come back"));
  Node("a", v1::NODE_LIVE, 3);
  EXPECT_THAT(Look(), ElementsAre("node_restarted"));
  Node("a", v1::NODE_LEFT, 3);
  EXPECT_THAT(Look(), ElementsAre("node_left"));
  nodes_.clear_nodes();
  EXPECT_THAT(Look(), ElementsAre("node_removed"));
  EXPECT_THAT(Look(), IsEmpty());
}

TEST_F(ClusterObserverTest, ADrainIsToldFromBeginToEndAndSaysWhoStillFetched) {
  Node("a", v1::NODE_LIVE);
  EXPECT_THAT(Look(), IsEmpty());
  Node("a", v1::NODE_LIVE)->set_drain(v1::DRAIN_DRAINING);
  EXPECT_THAT(Look(), ElementsAre("node_draining"));
  EXPECT_THAT(texts_, HasSubstr("is drained by an operator"));
  EXPECT_THAT(Look(), IsEmpty());
  Node("a", v1::NODE_LIVE)->set_drain(v1::DRAIN_DRAINED);
  Node("a", v1::NODE_LIVE)->set_pulled_by(2);
  EXPECT_THAT(Look(), ElementsAre("node_drained"));
  EXPECT_THAT(texts_, HasSubstr("2 servers still fetched from it"));
  Node("a", v1::NODE_LIVE)->set_drain(v1::DRAIN_NONE);
  EXPECT_THAT(Look(), ElementsAre("node_drain_cancelled"));
  Node("a", v1::NODE_LIVE)->set_drain(v1::DRAIN_DRAINING);
  Node("a", v1::NODE_LIVE)->set_stopping(true);
  EXPECT_THAT(Look(), ElementsAre("node_draining"));
  EXPECT_THAT(texts_, HasSubstr("server a stops"));
  Node("a", v1::NODE_LEFT)->set_drain(v1::DRAIN_NONE);
  EXPECT_THAT(Look(), ElementsAre("node_left"));
}

TEST_F(ClusterObserverTest, DrainsAreCountedWithWhatIsLeftAndWhatTheyTook) {
  Node("a", v1::NODE_LIVE);
  Node("b", v1::NODE_LIVE);
  (void)Look();
  EXPECT_EQ(metrics_.begun.value(), 0);
  Node("a", v1::NODE_LIVE)->set_drain(v1::DRAIN_DRAINING);
  Node("a", v1::NODE_LIVE)->set_slots(700);
  (void)Look();
  EXPECT_EQ(metrics_.nodes.value(), 1);
  EXPECT_EQ(metrics_.slots.value(), 700);
  for (int i = 0; i < 12; ++i) {
    clock_.Advance(std::chrono::seconds(1));
    (void)Look();
  }
  Node("a", v1::NODE_LIVE)->set_drain(v1::DRAIN_DRAINED);
  EXPECT_THAT(Look(), ElementsAre("node_drained"));
  EXPECT_THAT(texts_, HasSubstr("drained after 12 s"));
  EXPECT_EQ(metrics_.nodes.value(), 0);
  EXPECT_EQ(metrics_.slots.value(), 0);
  EXPECT_THAT(registry_.Render(), HasSubstr("\nems_controller_drain_seconds_sum 12\n"));
  EXPECT_EQ(metrics_.done.value(), 1);
  Node("a", v1::NODE_LIVE)->set_drain(v1::DRAIN_NONE);
  (void)Look();
  EXPECT_EQ(metrics_.given_up.value(), 0) << "it was done";

  Node("b", v1::NODE_LIVE)->set_drain(v1::DRAIN_DRAINING);
  (void)Look();
  Node("b", v1::NODE_LIVE)->set_drain(v1::DRAIN_NONE);
  (void)Look();
  EXPECT_EQ(metrics_.given_up.value(), 1);
  Node("b", v1::NODE_LIVE)->set_drain(v1::DRAIN_DRAINING);
  (void)Look();
  Node("b", v1::NODE_LIVE)->set_drain(v1::DRAIN_DRAINED);
  Node("b", v1::NODE_LIVE)->set_pulled_by(2);
  (void)Look();
  EXPECT_EQ(metrics_.timed_out.value(), 1);
  EXPECT_EQ(metrics_.done.value(), 1);
  EXPECT_EQ(metrics_.begun.value(), 3);
  Node("a", v1::NODE_LIVE)->set_drain(v1::DRAIN_DRAINING);
  (void)Look();
  nodes_.clear_nodes();
  (void)Look();
  EXPECT_EQ(metrics_.given_up.value(), 2) << "it is forgotten";
}

TEST_F(ClusterObserverTest, TheTierOfALiveServerFailsAndWorksAgain) {
  v1::NodeUsage* usage = Node("a", v1::NODE_LIVE)->mutable_usage();
  EXPECT_THAT(Look(), IsEmpty());
  usage->set_ssd_state(v1::SSD_DEGRADED);
  EXPECT_THAT(Look(), ElementsAre("ssd_degraded"));
  usage->set_ssd_state(v1::SSD_OFFLINE);
  EXPECT_THAT(Look(), IsEmpty());
  Node("a", v1::NODE_DOWN);
  EXPECT_THAT(Look(), ElementsAre("node_lost"));
  Node("a", v1::NODE_LIVE);
  usage->set_ssd_state(v1::SSD_OK);
  EXPECT_THAT(Look(), ElementsAre("node_joined", "ssd_recovered"));
}

TEST_F(ClusterObserverTest, DamageIsCountedOfEachProcess) {
  v1::NodeUsage* usage = Node("a", v1::NODE_LIVE)->mutable_usage();
  usage->set_damaged_objects(2);
  EXPECT_THAT(Look(), IsEmpty());
  usage->set_damaged_objects(5);
  EXPECT_THAT(Look(), ElementsAre("objects_damaged"));
  EXPECT_THAT(texts_, HasSubstr("dropped 3 damaged objects, 5 since"));
  Node("a", v1::NODE_LIVE, 2);
  usage->set_damaged_objects(1);
  EXPECT_THAT(Look(), ElementsAre("node_restarted", "objects_damaged"));
}

TEST_F(ClusterObserverTest, ViewsFollowServersAndNameWhoIsNewAndGone) {
  Node("a", v1::NODE_LIVE);
  EXPECT_THAT(Look(MakeView(1, {"a"})), IsEmpty());
  Node("a", v1::NODE_DOWN);
  EXPECT_THAT(Look(MakeView(2, {"b", "c"})), ElementsAre("node_lost", "view_published"));
  EXPECT_THAT(texts_, HasSubstr("view 1.2: 2 servers, 0 slots moved; new: b, c; gone: a"));
  EXPECT_THAT(Look(MakeView(3, {"b", "c"}, true)), ElementsAre("view_published", "view_frozen"));
  EXPECT_THAT(Look(MakeView(4, {"b", "c"})), ElementsAre("view_published", "view_thawed"));
}

}  // namespace
}  // namespace ems::controller
