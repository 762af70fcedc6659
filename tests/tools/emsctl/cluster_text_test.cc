// What must hold: status tells healthy from degraded, frozen and empty, and says what to do; tables
// and JSON carry the figures.
#include "tools/emsctl/cluster_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "common/bytes.h"
#include "proto/controller.pb.h"

namespace ems::emsctl {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Two servers that own half of the slots each.
class ClusterTextTest : public ::testing::Test {
 protected:
  void SetUp() override {
    AddNode(1, "alpha", v1::NODE_LIVE);
    AddNode(2, "beta", v1::NODE_LIVE);
    namespaces_.by_id[NamespaceId(1)].name = "default";
    MakeView(false);
  }
  void AddNode(uint32_t id, const std::string& name, v1::NodeState state) {
    v1::NodeStatus* status = nodes_.add_nodes();
    status->mutable_node()->set_id(id);
    status->mutable_node()->set_name(name);
    status->mutable_node()->set_state(state);
    status->mutable_node()->set_data_address("127.0.0.1:750" + std::to_string(id));
    status->mutable_usage()->set_dram_used_bytes(256 * kMiB);
    status->mutable_usage()->set_dram_total_bytes(kGiB);
    status->mutable_usage()->set_objects(10);
    status->set_heartbeat_age_ms(300);
    status->set_slots(8192);
    status->set_term(3);
    status->set_epoch(7);
  }
  void MakeView(bool frozen) {
    SlotTable slots;
    for (uint16_t slot = 0; slot < kSlotCount; ++slot) {
      slots.set_owner(SlotId(slot), NodeId(slot < 8192 ? 1 : 2));
    }
    std::vector<NodeInfo> infos(2);
    infos[0].id = NodeId(1);
    infos[0].name = "alpha";
    infos[1].id = NodeId(2);
    infos[1].name = "beta";
    auto made = DhtView::Make(ViewVersion(3, 7), infos, slots, frozen);
    ASSERT_TRUE(made.ok()) << ToString(made.status());
    view_ = *made;
  }
  ClusterSnapshot Snapshot() const {
    return {.view = view_.get(), .nodes = &nodes_, .namespaces = &namespaces_};
  }
  v1::ListNodesReply nodes_;
  NamespaceTable namespaces_;
  std::shared_ptr<const DhtView> view_;
};

TEST(StatsTextTest, HasOneLineAValue) {
  const auto stats = nlohmann::ordered_json::parse(
      R"({"name": "a", "pool": {"page_kind": "4 KiB", "bytes": 7}, "list": [{"x": true}]})");
  const std::string text = StatsText(stats);
  EXPECT_THAT(text, HasSubstr("pool.page_kind  4 KiB\n"));
  EXPECT_THAT(text, HasSubstr("list.0.x        true\n"));
}

TEST_F(ClusterTextTest, HealthyClusterShowsItsFiguresAndNoAdvice) {
  const ClusterSnapshot snapshot = Snapshot();
  EXPECT_EQ(HealthOf(snapshot), Health::kOk);
  EXPECT_TRUE(AdviceFor(snapshot).empty());
  const std::string text = StatusText(snapshot);
  EXPECT_THAT(text, HasSubstr("OK"));
  EXPECT_THAT(text, HasSubstr("term 3 epoch 7"));
  EXPECT_THAT(text, HasSubstr("2 up, 0 down, 0 left"));
  EXPECT_THAT(text, HasSubstr("512 MiB of 2 GiB used (25.0 %)"));
  EXPECT_THAT(text, Not(HasSubstr("hit rate")));
  EXPECT_THAT(text, Not(HasSubstr("!")));
}

TEST_F(ClusterTextTest, DownServerDegradesAndIsNamedWithTheWayOut) {
  AddNode(3, "gamma", v1::NODE_DOWN);
  EXPECT_EQ(HealthOf(Snapshot()), Health::kDegraded);
  EXPECT_THAT(StatusText(Snapshot()), HasSubstr("emsctl node delete gamma"));
  EXPECT_THAT(StatusText(Snapshot()),
              HasSubstr("512 MiB of 2 GiB"));  // what is down does not count
}

TEST_F(ClusterTextTest, ServerThatLeftInOrderIsNoFault) {
  AddNode(3, "gamma", v1::NODE_LEFT);
  EXPECT_EQ(HealthOf(Snapshot()), Health::kOk);
}

TEST_F(ClusterTextTest, AnSsdTierIsShownAndOneThatIsSickIsAFault) {
  EXPECT_THAT(StatusText(Snapshot()), Not(HasSubstr("SSD")));
  v1::NodeUsage* usage = nodes_.mutable_nodes(1)->mutable_usage();
  usage->set_ssd_state(v1::SSD_OK);
  usage->set_ssd_used_bytes(5 * kGiB);
  usage->set_ssd_total_bytes(20 * kGiB);
  EXPECT_EQ(HealthOf(Snapshot()), Health::kOk);
  EXPECT_THAT(StatusText(Snapshot()), HasSubstr("5 GiB of 20 GiB used (25.0 %)"));
  EXPECT_THAT(NodesText(nodes_), HasSubstr("5 GiB of 20 GiB"));
  EXPECT_EQ(NodesJson(nodes_)[1]["ssd_state"], "ok");
  EXPECT_EQ(NodesJson(nodes_)[0]["ssd_state"], "none");
  usage->set_ssd_state(v1::SSD_DEGRADED);
  EXPECT_EQ(HealthOf(Snapshot()), Health::kDegraded);
  EXPECT_THAT(NodesText(nodes_), HasSubstr("20 GiB, degraded"));
  EXPECT_THAT(StatusText(Snapshot()), HasSubstr("`emsctl node show beta`"));
  usage->set_ssd_state(v1::SSD_OFFLINE);
  EXPECT_THAT(StatusText(Snapshot()), HasSubstr("restart"));
  nodes_.mutable_nodes(1)->mutable_node()->set_state(v1::NODE_LEFT);
  EXPECT_EQ(HealthOf(Snapshot()), Health::kOk) << "it is not there";
}

TEST_F(ClusterTextTest, AServerThatIsAheadOfTheControllerIsAFault) {
  EXPECT_FALSE(NodesJson(nodes_)[1]["ahead"]);
  nodes_.mutable_nodes(1)->set_ahead(true);
  EXPECT_EQ(HealthOf(Snapshot()), Health::kDegraded);
  EXPECT_THAT(StatusText(Snapshot()), HasSubstr("Server beta came with views or namespaces"));
  EXPECT_TRUE(NeedsAnOperator(Snapshot()));
  nodes_.mutable_nodes(1)->mutable_node()->set_state(v1::NODE_DOWN);
  EXPECT_THAT(StatusText(Snapshot()), Not(HasSubstr("has not been heard of"))) << "it is there";
  EXPECT_TRUE(NodesJson(nodes_)[1]["ahead"]);
  nodes_.mutable_nodes(1)->mutable_node()->set_state(v1::NODE_LEFT);
  EXPECT_EQ(HealthOf(Snapshot()), Health::kOk);
}

TEST_F(ClusterTextTest, AnOldStoreOfTheControllerIsAFaultThatAnOperatorMends) {
  EXPECT_FALSE(NeedsAnOperator(Snapshot()));
  EXPECT_FALSE(StatusJson(Snapshot())["store_is_old"]);
  nodes_.set_store_is_old(true);
  EXPECT_EQ(HealthOf(Snapshot()), Health::kDegraded);
  EXPECT_TRUE(NeedsAnOperator(Snapshot()));
  EXPECT_THAT(StatusText(Snapshot()), HasSubstr("data_dir is an older copy"));
  EXPECT_TRUE(StatusJson(Snapshot())["store_is_old"]);
}

// One heartbeat is what a server takes to report a view, two are no fault.
TEST_F(ClusterTextTest, AnOwnerThatIsBehindForTwoHeartbeatsIsAFault) {
  nodes_.set_heartbeat_ms(1000);
  v1::NodeStatus* beta = nodes_.mutable_nodes(1);
  beta->set_epoch(6);
  beta->set_behind_ms(2000);
  EXPECT_EQ(HealthOf(Snapshot()), Health::kOk);
  beta->set_behind_ms(2001);
  EXPECT_EQ(HealthOf(Snapshot()), Health::kDegraded);
  EXPECT_THAT(StatusText(Snapshot()), HasSubstr("Server beta has installed view term 3 epoch 6"));
  EXPECT_FALSE(NeedsAnOperator(Snapshot()));
  beta->set_term(0);
  beta->set_epoch(0);
  EXPECT_THAT(StatusText(Snapshot()), HasSubstr("has reported no view for 2.0 s"));
  beta->set_slots(0);
  EXPECT_EQ(HealthOf(Snapshot()), Health::kOk) << "nobody waits for it";
}

TEST_F(ClusterTextTest, TheClusterIsShown) {
  EXPECT_TRUE(StatusJson(Snapshot())["cluster"].is_null());
  nodes_.set_cluster(0xabc);
  EXPECT_THAT(StatusText(Snapshot()), HasSubstr("0000000000000abc"));
  EXPECT_EQ(StatusJson(Snapshot())["cluster"], "0000000000000abc");
}

TEST_F(ClusterTextTest, NodesSayWhenTheyJoinedLeftAndWereHeardOf) {
  nodes_.set_now_unix_ms(10'000'000);
  AddNode(3, "gamma", v1::NODE_LEFT);
  AddNode(4, "delta", v1::NODE_DOWN);
  nodes_.mutable_nodes(0)->mutable_node()->set_joined_unix_ms(1000);
  nodes_.mutable_nodes(2)->mutable_node()->set_left_unix_ms(10'000'000 - 600'000);
  nodes_.mutable_nodes(3)->set_never_heard(true);
  AddNode(5, "epsilon", v1::NODE_DOWN);  // with an SSD tier
  nodes_.mutable_nodes(4)->mutable_node()->set_left_unix_ms(10'000'000 - 300'000);
  const std::string text = NodesText(nodes_);
  EXPECT_THAT(text, HasSubstr("0.3 s ago"));
  EXPECT_THAT(text, HasSubstr("stopped 5 min ago"));
  EXPECT_THAT(text, HasSubstr("left 10 min ago"));
  EXPECT_THAT(text, HasSubstr("not since the controller started"));
  EXPECT_THAT(StatusText(Snapshot()),
              HasSubstr("Server delta (127.0.0.1:7504) has not been heard of since the controller "
                        "started"));
  EXPECT_TRUE(NodesJson(nodes_)[3]["heartbeat_age_ms"].is_null());
  EXPECT_EQ(NodesJson(nodes_)[2]["left_unix_ms"], 9'400'000);
}

TEST_F(ClusterTextTest, FrozenViewPointsToAcceptLoss) {
  MakeView(true);
  EXPECT_TRUE(NeedsAnOperator(Snapshot()));
  EXPECT_EQ(HealthOf(Snapshot()), Health::kFrozen);
  EXPECT_THAT(StatusText(Snapshot()), HasSubstr("emsctl view accept-loss"));
  EXPECT_TRUE(StatusJson(Snapshot())["view"]["frozen"]);
}

TEST_F(ClusterTextTest, NoServersAndNoNamespacesAreSaid) {
  nodes_.Clear();
  namespaces_.by_id.clear();
  ClusterSnapshot snapshot = Snapshot();
  snapshot.view = nullptr;
  EXPECT_EQ(HealthOf(snapshot), Health::kNoServers);
  EXPECT_TRUE(NeedsAnOperator(snapshot));
  EXPECT_EQ(AdviceFor(snapshot).size(), 2U);
  EXPECT_THAT(StatusText(snapshot), HasSubstr("none yet"));
  EXPECT_TRUE(StatusJson(snapshot)["view"].is_null());
}

TEST_F(ClusterTextTest, HitRateIsShownWhenKnown) {
  const HitCounts hits{.gets = 200, .hits = 50};
  ClusterSnapshot snapshot = Snapshot();
  snapshot.hits = &hits;
  EXPECT_THAT(StatusText(snapshot), HasSubstr("25.0 % of 200 look-ups"));
  EXPECT_EQ(StatusJson(snapshot)["hits"], 50);
}

TEST_F(ClusterTextTest, HitsAreReadFromStatisticsOrNotAtAll) {
  EXPECT_EQ(HitsOf(R"({"gets": 7, "hits": 3, "more": {}})"), (HitCounts{7, 3}));
  EXPECT_EQ(HitsOf(R"({"gets": 7})"), std::nullopt);
  EXPECT_EQ(HitsOf(R"({"gets": "7", "hits": -3})"), std::nullopt);
  EXPECT_EQ(HitsOf("not json"), std::nullopt);
  EXPECT_EQ(HitsOf(""), std::nullopt);
}

TEST_F(ClusterTextTest, NodesTableAndJsonHaveOneEntryAServer) {
  const std::string text = NodesText(nodes_);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 3);
  EXPECT_THAT(text, HasSubstr("127.0.0.1:7502"));
  const auto json = NodesJson(nodes_);
  ASSERT_EQ(json.size(), 2U);
  EXPECT_EQ(json[0]["name"], "alpha");
  EXPECT_EQ(json[0]["state"], "up");
  EXPECT_EQ(json[1]["slots"], 8192);
}

TEST_F(ClusterTextTest, SlotRangesAreMaximalRuns) {
  SlotTable slots;
  for (const SlotId slot :
       {SlotId(0), SlotId(1), SlotId(2), SlotId(7), SlotId(16382), SlotId(16383)})
    slots.set_owner(slot, NodeId(5));
  EXPECT_EQ(SlotRanges(slots, NodeId(5)), "0-2,7,16382-16383");
  EXPECT_EQ(SlotRanges(slots, NodeId(6)), "");
}

TEST_F(ClusterTextTest, ViewShowsSharesAndSlotsOnRequest) {
  EXPECT_THAT(ViewText(*view_, false), HasSubstr("50.0 %"));
  EXPECT_THAT(ViewText(*view_, false), Not(HasSubstr("0-8191")));
  EXPECT_THAT(ViewText(*view_, true), HasSubstr("beta: 8192-16383"));
  EXPECT_FALSE(ViewJson(*view_, false).contains("owners"));
  const auto owners = ViewJson(*view_, true)["owners"];
  ASSERT_EQ(owners.size(), kSlotCount);
  EXPECT_EQ(owners[8191], 1);
  EXPECT_EQ(owners[8192], 2);
}

// Some Puts are held then, and nothing but an operator ends it.
TEST_F(ClusterTextTest, AServerThatIsWaitedForBeyondItsLeaseNeedsAnOperator) {
  nodes_.set_lease_ms(5000);
  v1::NodeStatus* beta = nodes_.mutable_nodes(1);
  beta->set_waited_for(true);
  beta->set_waiting_ms(7000);
  EXPECT_EQ(HealthOf(Snapshot()), Health::kOk) << "it may be over by itself";
  EXPECT_FALSE(NeedsAnOperator(Snapshot()));
  beta->set_waiting_ms(7001);
  EXPECT_EQ(HealthOf(Snapshot()), Health::kDegraded);
  EXPECT_TRUE(NeedsAnOperator(Snapshot()));
  EXPECT_THAT(StatusText(Snapshot()), HasSubstr("a process of server beta takes none any more"));
  EXPECT_THAT(StatusText(Snapshot()), HasSubstr("emsctl view accept-loss"));
  beta->set_epoch(6);  // behind, too
  EXPECT_THAT(StatusText(Snapshot()), HasSubstr("emsctl view accept-loss"));
  nodes_.set_lease_ms(0);
  beta->set_epoch(7);
  EXPECT_FALSE(NeedsAnOperator(Snapshot())) << "an older controller does not say for how long";
}

TEST_F(ClusterTextTest, AServerThatIsDrainedSaysHowFarItIsAndIsNothingToMend) {
  EXPECT_THAT(StatusText(Snapshot()), Not(HasSubstr("DRAIN")));
  v1::NodeStatus* beta = nodes_.mutable_nodes(1);
  beta->set_drain(v1::DRAIN_DRAINING);
  beta->set_slots(0);
  beta->set_pulled_by(1);
  EXPECT_THAT(StatusText(Snapshot()), HasSubstr(", 1 DRAINING"));
  EXPECT_THAT(NodesText(nodes_), HasSubstr("DRAINING"));
  EXPECT_THAT(NodesText(nodes_), HasSubstr("1 may still fetch from it"));
  beta->set_drain(v1::DRAIN_DRAINED);
  beta->set_pulled_by(0);
  EXPECT_THAT(StatusText(Snapshot()), HasSubstr(", 1 DRAINED"));
  EXPECT_EQ(StatusJson(Snapshot())["servers"]["drained"], 1);
  EXPECT_EQ(NodesJson(nodes_)[1]["drain"], "drained");
  EXPECT_EQ(NodesJson(nodes_)[0]["drain"], "none");
  EXPECT_EQ(HealthOf(Snapshot()), Health::kOk);
  beta->mutable_node()->set_state(v1::NODE_LEFT);
  EXPECT_THAT(NodesText(nodes_), HasSubstr("left")) << "its state";
  EXPECT_THAT(NodesText(nodes_), HasSubstr("drained\n")) << "and it stays so";
}

TEST_F(ClusterTextTest, NodesSayWhoIsAheadBehindAndWaitedFor) {
  EXPECT_THAT(NodesText(nodes_), Not(HasSubstr("behind")));
  nodes_.mutable_nodes(0)->set_ahead(true);
  nodes_.mutable_nodes(1)->set_behind_ms(3200);
  nodes_.mutable_nodes(1)->set_waited_for(true);
  nodes_.mutable_nodes(1)->set_waiting_ms(4100);
  EXPECT_THAT(NodesText(nodes_), HasSubstr("ahead\n"));
  EXPECT_THAT(NodesText(nodes_), HasSubstr("behind 3.2 s, waited for 4.1 s\n"));
  const auto json = NodesJson(nodes_);
  EXPECT_FALSE(json[0]["waited_for"]);
  EXPECT_TRUE(json[1]["waited_for"]);
  EXPECT_EQ(json[1]["waiting_ms"], 4100);
}

}  // namespace
}  // namespace ems::emsctl
