// What must hold: the controller's page says of real servers what emsctl says, its stream goes on
// by itself and ends when the controller stops.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/cluster.h"
#include "tests/support/daemon.h"
#include "tests/support/eventually.h"
#include "tests/support/raw_connection.h"

namespace ems::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using Json = nlohmann::json;

class ClusterPageE2eTest : public ::testing::Test {
 protected:
  void Start(std::vector<std::string> controller_flags) {
    auto started = Cluster::Start(
        {.servers = 2, .controller_flags = std::move(controller_flags), .server_flags = {}});
    ASSERT_TRUE(started.ok()) << started.status();
    cluster_ = std::move(*started);
    http_ = cluster_->controller().ready().http_address;
  }
  Json State() const {
    const std::string answer = HttpGet(http_, "/state").value_or("");
    EXPECT_THAT(answer, StartsWith("200"));
    return Json::parse(answer.substr(4), nullptr, false);
  }
  Json Emsctl(std::vector<std::string> flags) const {
    flags.insert(flags.begin(), {"--json", "--controller", cluster_->controller_address()});
    const auto ran = RunProgram("emsctl", flags);
    return ran.ok() ? Json::parse(ran->out, nullptr, false) : Json();
  }

  std::unique_ptr<Cluster> cluster_;
  std::string http_;
};

TEST_F(ClusterPageE2eTest, TheStateIsWhatEmsctlSays) {
  ASSERT_NO_FATAL_FAILURE(Start({}));
  const auto client = cluster_->Connect(TransportChoice::kTcp);
  ASSERT_TRUE(client.ok()) << client.status();
  for (int i = 0; i < 20; ++i) {
    const std::string key = "key-" + std::to_string(i);
    ASSERT_EQ((*client)->Put(key, std::string_view("value")), OkStatus());
    ASSERT_TRUE((*client)->Get(key).ok());
  }
  Json state;
  EXPECT_TRUE(Eventually([&] {  // with the next heartbeats
    state = State();
    return state["objects"] == 20 &&
           state["nodes"][0]["hits"].get<int>() + state["nodes"][1]["hits"].get<int>() == 20;
  })) << state;
  const Json status = Emsctl({"status"}), nodes = Emsctl({"node", "list"});
  for (const char* key : {"cluster", "view", "servers", "objects", "dram_used_bytes",
                          "dram_total_bytes", "ssd_total_bytes", "store_is_old"}) {
    EXPECT_EQ(state[key], status[key]) << key;
  }
  ASSERT_EQ(state["nodes"].size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    for (const char* key : {"name", "id", "state", "data_address", "slots", "capacity_bytes",
                            "dram_used_bytes", "objects", "ssd_state", "term", "epoch"}) {
      EXPECT_EQ(state["nodes"][i][key], nodes[i][key]) << key;
    }
  }
  for (const char* key : {"health", "gets", "hits"}) EXPECT_EQ(state[key], status[key]) << key;
  EXPECT_EQ(state["namespaces"][0]["name"], "default");
  const std::string page = HttpGet(http_, "/").value_or("");
  EXPECT_THAT(page, StartsWith("200"));
  EXPECT_THAT(page, HasSubstr("new EventSource('events')"));
}

TEST_F(ClusterPageE2eTest, TheStreamGoesOnAndEndsWithTheController) {
  ASSERT_NO_FATAL_FAILURE(Start({}));
  Result<RawConnection> stream = RawConnection::Open(http_);
  ASSERT_TRUE(stream.ok()) << stream.status();
  ASSERT_TRUE(stream->Send("GET /events HTTP/1.1\r\nHost: x\r\n\r\n"));
  std::string got;
  const auto events = [&] {
    int count = 0;
    for (size_t at = 0; (at = got.find("\ndata: ", at)) != std::string::npos; ++at) ++count;
    return count;
  };
  while (events() < 3) {
    const Result<std::string> byte = stream->Receive(1, std::chrono::seconds(10));
    ASSERT_TRUE(byte.ok()) << byte.status() << " after " << got;
    got += *byte;
  }
  cluster_->controller().Signal(SIGTERM);
  EXPECT_TRUE(stream->WaitClosed(std::chrono::seconds(5)));
  EXPECT_EQ(cluster_->controller().WaitExit(std::chrono::seconds(5)).value_or(-1), 0);
}

TEST_F(ClusterPageE2eTest, ThePageCanBeTurnedOff) {
  ASSERT_NO_FATAL_FAILURE(Start({"--set", "page=off"}));
  for (const char* path : {"/", "/state", "/events"}) {
    EXPECT_THAT(HttpGet(http_, path).value_or(""), StartsWith("404")) << path;
  }
  EXPECT_THAT(HttpGet(http_, "/healthz").value_or(""), StartsWith("200"));
}

}  // namespace
}  // namespace ems::testing
