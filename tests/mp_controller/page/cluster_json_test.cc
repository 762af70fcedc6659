// What must hold: the document says what the controller knows, whatever servers, namespaces and
// models are called, and stays small.
#include "mp_controller/page/cluster_json.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "cluster/dht_view.h"
#include "proto/controller.pb.h"
#include "proto/model.pb.h"

namespace ems::controller {
namespace {

using Json = nlohmann::json;

class ClusterJsonTest : public ::testing::Test {
 protected:
  v1::NodeStatus* AddNode(const std::string& name, v1::NodeState state) {
    v1::NodeStatus* node = nodes_.add_nodes();
    node->mutable_node()->set_name(name);
    node->mutable_node()->set_id(static_cast<uint32_t>(nodes_.nodes_size()));
    node->mutable_node()->set_state(state);
    node->mutable_usage()->set_dram_used_bytes(10);
    node->mutable_usage()->set_dram_total_bytes(100);
    return node;
  }
  std::string Text(const DhtView* view = nullptr) const {
    return ClusterJson(
        {.view = view, .nodes = &nodes_, .namespaces = &namespaces_, .models = &models_});
  }
  Json Parsed(const DhtView* view = nullptr) const {
    return Json::parse(Text(view), nullptr, /*allow_exceptions=*/false);
  }

  v1::ListNodesReply nodes_;
  v1::ListNamespacesReply namespaces_;
  v1::ListModelsReply models_;
};

TEST_F(ClusterJsonTest, AnEmptyClusterHasNoViewAndNoRows) {
  const Json json = Parsed();
  EXPECT_EQ(json["cluster"], nullptr);
  EXPECT_EQ(json["view"], nullptr);
  EXPECT_EQ(json["slots"], 16384);
  EXPECT_EQ(json["servers"]["up"], 0);
  for (const char* rows : {"nodes", "namespaces", "models"}) {
    EXPECT_EQ(json[rows], Json::array()) << rows;
    EXPECT_EQ(json[std::string(rows) + "_left_out"], 0) << rows;
  }
}

TEST_F(ClusterJsonTest, SaysWhoIsDrained) {
  AddNode("a", v1::NODE_LIVE);
  v1::NodeStatus* b = AddNode("b", v1::NODE_LIVE);
  b->set_drain(v1::DRAIN_DRAINING);
  b->set_pulled_by(3);
  b->set_stopping(true);
  AddNode("c", v1::NODE_LEFT)->set_drain(v1::DRAIN_DRAINED);
  const Json json = Parsed();
  EXPECT_EQ(json["servers"]["draining"], 1);
  EXPECT_EQ(json["servers"]["drained"], 1);
  std::map<std::string, Json> nodes;
  for (const Json& node : json["nodes"]) nodes[node["name"]] = node;
  EXPECT_EQ(nodes["a"]["drain"], "none");
  EXPECT_EQ(nodes["b"]["drain"], "draining");
  EXPECT_EQ(nodes["b"]["pulled_by"], 3);
  EXPECT_EQ(nodes["b"]["stopping"], true);
  EXPECT_EQ(nodes["c"]["drain"], "drained");
}

TEST_F(ClusterJsonTest, SaysWhatServersSayOfThemselves) {
  nodes_.set_cluster(0xabc);
  v1::NodeStatus* node = AddNode("a", v1::NODE_LIVE);
  node->set_slots(7);
  node->set_heartbeat_age_ms(40);
  node->mutable_node()->set_data_address("h:1");
  node->mutable_usage()->set_ssd_state(v1::SSD_DEGRADED);
  node->mutable_usage()->set_gets(9);
  node->mutable_usage()->set_hits(4);
  AddNode("b", v1::NODE_DOWN)->set_never_heard(true);
  const auto view = *DhtView::Make({3, 5}, {}, SlotTable(), /*frozen=*/true);
  const Json json = Parsed(view.get());
  EXPECT_EQ(json["cluster"], "0000000000000abc");
  EXPECT_EQ(json["view"], Json({{"term", 3}, {"epoch", 5}, {"frozen", true}}));
  EXPECT_EQ(json["servers"],
            Json({{"up", 1}, {"down", 1}, {"left", 0}, {"draining", 0}, {"drained", 0}}));
  EXPECT_EQ(json["dram_used_bytes"], 10) << "of those that are up";
  const Json& down = json["nodes"][0];
  EXPECT_EQ(down["name"], "b");
  EXPECT_EQ(down["state"], "DOWN");
  EXPECT_EQ(down["heartbeat_age_ms"], nullptr);
  const Json& up = json["nodes"][1];
  EXPECT_EQ(up["state"], "up");
  EXPECT_EQ(up["slots"], 7);
  EXPECT_EQ(up["data_address"], "h:1");
  EXPECT_EQ(up["ssd_state"], "degraded");
  EXPECT_EQ(up["gets"], 9);
  EXPECT_EQ(up["hits"], 4);
  EXPECT_EQ(up["heartbeat_age_ms"], 40);
}

TEST_F(ClusterJsonTest, SaysOfANamespaceWhatEmsctlSays) {
  v1::Namespace* one = namespaces_.add_namespaces();
  one->set_generation(77);
  EXPECT_EQ(Parsed()["namespaces"][0]["durability"], "dram");
  EXPECT_EQ(Parsed()["namespaces"][0]["checksum"], "always");
  EXPECT_EQ(Parsed()["namespaces"][0]["generation"], 77);
  one->mutable_policy()->set_durability(v1::DURABILITY_SSD);
  EXPECT_EQ(Parsed()["namespaces"][0]["durability"], "ssd");
  one->mutable_policy()->set_ssd_sync_relaxed(true);
  EXPECT_EQ(Parsed()["namespaces"][0]["durability"], "ssd-relaxed");
  one->mutable_policy()->set_checksum(v1::CHECKSUM_SAMPLED);
  EXPECT_EQ(Parsed()["namespaces"][0]["checksum"], "sampled");
  one->mutable_policy()->set_checksum(v1::CHECKSUM_NEVER);
  EXPECT_EQ(Parsed()["namespaces"][0]["checksum"], "never");
}

TEST_F(ClusterJsonTest, SaysWhatMoreMemoryWouldBring) {
  v1::Namespace* one = namespaces_.add_namespaces();
  one->set_id(3);
  one->set_generation(9);
  EXPECT_EQ(Parsed()["namespaces"][0]["curve"], nullptr);
  v1::HitCurve* curve = namespaces_.add_curves();
  curve->set_namespace_id(3);
  curve->set_generation(9);
  curve->set_lookups(100);
  curve->set_hits(25);
  EXPECT_EQ(Parsed()["namespaces"][0]["curve"]["estimates"], nullptr);
  for (int i = 0; i < 6; ++i) curve->add_estimates(i == 3 ? 65'535 : 0);
  const Json json = Parsed()["namespaces"][0]["curve"];
  EXPECT_EQ(json["hits"], 25);
  EXPECT_EQ(json["memories"][3], 2);
  EXPECT_EQ(json["estimates"][3], 1);
  EXPECT_EQ(json["estimates"][2], 0);
  one->set_generation(10);
  EXPECT_EQ(Parsed()["namespaces"][0]["curve"], nullptr) << "it is another's";
}

TEST_F(ClusterJsonTest, SaysHowFarModelsAre) {
  v1::ModelStatus* model = models_.add_models();
  model->mutable_ref()->set_model("m");
  model->mutable_ref()->set_version("v1");
  model->set_bytes(1000);
  model->mutable_job()->set_state(v1::PULL_RUNNING);
  model->mutable_job()->set_bytes_done(400);
  model->mutable_job()->set_elapsed_ms(20);
  const Json json = Parsed()["models"][0];
  EXPECT_EQ(json["model"], "m");
  EXPECT_EQ(json["version"], "v1");
  EXPECT_EQ(json["job"]["state"], "running");
  EXPECT_EQ(json["job"]["bytes_done"], 400);
}

TEST_F(ClusterJsonTest, SaysOfEventsWhatEmsctlSays) {
  EXPECT_EQ(Parsed()["events"], Json::array());
  v1::ListEventsReply events;
  v1::ClusterEvent* event = events.add_events();
  event->set_sequence(7);
  event->set_unix_ms(1'795'782'078'788);
  event->set_kind("node_lost");
  event->set_node("a");
  event->set_text("gone \xff");
  const std::string text = ClusterJson(
      {.nodes = &nodes_, .namespaces = &namespaces_, .models = &models_, .events = &events});
  EXPECT_EQ(Json::parse(text)["events"], Json::array({{{"sequence", 7},
                                                       {"time", "2026-11-27T12:21:18.788Z"},
                                                       {"kind", "node_lost"},
                                                       {"node", "a"},
                                                       {"namespace", ""},
                                                       {"text", "gone \xef\xbf\xbd"}}}));
}

TEST_F(ClusterJsonTest, NamesStayWhatTheyAreInOneLine) {
  const std::string hostile = "</script><img src=x onerror=alert(1)>\"'\\\n\ndata: {}";
  AddNode(hostile, v1::NODE_LIVE);
  namespaces_.add_namespaces()->set_name(hostile);
  models_.add_models()->mutable_ref()->set_model(hostile);
  EXPECT_EQ(Text().find('\n'), std::string::npos) << "it would end an event of the stream";
  const Json json = Parsed();
  EXPECT_EQ(json["nodes"][0]["name"], hostile);
  EXPECT_EQ(json["namespaces"][0]["name"], hostile);
  EXPECT_EQ(json["models"][0]["model"], hostile);
}

TEST_F(ClusterJsonTest, TextThatIsNotUtf8IsReplaced) {
  AddNode("a\xff", v1::NODE_LIVE);
  EXPECT_EQ(Parsed()["nodes"][0]["name"], "a\xef\xbf\xbd");
}

TEST_F(ClusterJsonTest, OfTooManyRowsThoseThatNeedALookAreShown) {
  AddNode("left", v1::NODE_LEFT);
  for (int i = 0; i < kRowsMax; ++i) AddNode("up", v1::NODE_LIVE);
  AddNode("down", v1::NODE_DOWN);
  const Json json = Parsed();
  EXPECT_EQ(json["nodes"].size(), kRowsMax);
  EXPECT_EQ(json["nodes_left_out"], 2);
  EXPECT_EQ(json["nodes"][0]["name"], "down");
  EXPECT_EQ(json["nodes"].back()["name"], "up");
  EXPECT_EQ(json["servers"]["up"], kRowsMax);
  EXPECT_EQ(json["dram_total_bytes"], 100 * kRowsMax);
}

TEST_F(ClusterJsonTest, OfTooManyRowsThoseOfSickServersAreShown) {
  nodes_.set_lease_ms(5000);
  for (int i = 0; i < kRowsMax; ++i) AddNode("up", v1::NODE_LIVE);
  AddNode("ahead", v1::NODE_LIVE)->set_ahead(true);
  AddNode("ssd", v1::NODE_LIVE)->mutable_usage()->set_ssd_state(v1::SSD_OFFLINE);
  v1::NodeStatus* waited_for = AddNode("waited for", v1::NODE_LIVE);
  waited_for->set_waited_for(true);
  waited_for->set_waiting_ms(60'000);
  const Json json = Parsed();
  EXPECT_EQ(json["nodes"][0]["name"], "ahead");
  EXPECT_EQ(json["nodes"][1]["name"], "ssd");
  EXPECT_EQ(json["nodes"][2]["name"], "waited for");
}

TEST_F(ClusterJsonTest, HealthIsThatOfAllServers) {
  EXPECT_EQ(Parsed()["health"], "NO SERVERS");
  std::vector<NodeInfo> infos(1);
  infos[0].id = NodeId(1);
  const auto view = *DhtView::Make({3, 5}, infos, SlotTable(), /*frozen=*/false);
  for (int i = 0; i < kRowsMax; ++i) AddNode("up", v1::NODE_LIVE);
  EXPECT_EQ(Parsed(view.get())["health"], "OK");
  AddNode("sick", v1::NODE_LIVE)->mutable_usage()->set_ssd_state(v1::SSD_DEGRADED);
  EXPECT_EQ(Parsed(view.get())["health"], "DEGRADED");
}

TEST_F(ClusterJsonTest, LookUpsAreThoseOfAllServersThatAreUp) {
  for (int i = 0; i <= kRowsMax; ++i) {
    v1::NodeStatus* node = AddNode("up", v1::NODE_LIVE);
    node->mutable_usage()->set_gets(3);
    node->mutable_usage()->set_hits(2);
  }
  AddNode("down", v1::NODE_DOWN)->mutable_usage()->set_gets(1000);
  const Json before = Parsed();
  EXPECT_EQ(before["gets"], 3 * (kRowsMax + 1));
  EXPECT_EQ(before["hits"], 2 * (kRowsMax + 1));
  nodes_.mutable_nodes(0)->mutable_usage()->set_gets(9);
  EXPECT_EQ(Parsed()["processes"], before["processes"]);
  nodes_.mutable_nodes(0)->mutable_node()->set_boot_id(7);
  EXPECT_NE(Parsed()["processes"], before["processes"]);
}

}  // namespace
}  // namespace ems::controller
