// What must hold: a server whose controller is gone says so in a few lines, and how often it was;
// each line of log_format json is one object; a slow request has one number in the logs of client
// and server, and its key in none.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "common/logging.h"
#include "tests/support/cluster.h"
#include "tests/support/eventually.h"
#include "tests/support/raw_connection.h"

namespace ems::testing {
namespace {

using Json = nlohmann::json;

std::vector<Json> LogOf(const Daemon& daemon) {
  std::vector<Json> lines;
  std::istringstream stream(daemon.ReadLog());
  for (std::string line; std::getline(stream, line);) {
    lines.push_back(Json::parse(line, nullptr, false));
    EXPECT_TRUE(lines.back().is_object()) << line;
  }
  return lines;
}

uint64_t FailedHeartbeats(const Daemon& server) {
  const std::string metrics = HttpGet(server.ready().http_address, "/metrics").value_or("");
  std::smatch found;
  const std::regex wanted(R"(ems_server_heartbeats_total\{result="failed"\} (\d+))");
  return std::regex_search(metrics, found, wanted) ? std::stoull(found[1]) : 0;
}

TEST(LogsTest, AControllerThatIsGoneIsAHandfulOfLines) {
  constexpr uint64_t kFailures = 20;
  auto started = Cluster::Start({.servers = 1,
                                 .controller_flags = {"--set", "heartbeat_ms=50"},
                                 .server_flags = {"--set", "log_format=json"}});
  ASSERT_TRUE(started.ok()) << started.status();
  Daemon& server = (*started)->server(0);
  const size_t before = LogOf(server).size();
  (*started)->controller().Kill();
  ASSERT_TRUE(Eventually([&] { return FailedHeartbeats(server) >= kFailures; }));
  EXPECT_LE(LogOf(server).size() - before, 8u) << server.ReadLog();

  // What was held back is said before it ends.
  server.Signal(SIGTERM);
  ASSERT_TRUE(server.WaitExit(std::chrono::seconds(15)).ok());
  uint64_t said = 0;
  for (const Json& line : LogOf(server)) {
    for (const char* key : {"time", "level", "component", "message"})
      EXPECT_TRUE(line.contains(key)) << line;
    const std::string message = line.value("message", "");
    if (message.starts_with("heartbeat failed")) said += line.value("repeated", 1u);
  }
  EXPECT_GE(said, kFailures) << server.ReadLog();
}

TEST(LogsTest, ASlowRequestIsNamedAlikeByClientAndServer) {
  auto started =
      Cluster::Start({.servers = 1,
                      .controller_flags = {},
                      .server_flags = {"--set", "log_format=json", "--set", "slow_request_ms=500",
                                       "--set", "ssd.capacity_bytes=64MiB", "--set",
                                       "fail_points=put.after_publish=sleep(1200)@1"}});
  ASSERT_TRUE(started.ok()) << started.status();
  auto client = (*started)->Connect(TransportChoice::kTcp, std::chrono::seconds(10));
  ASSERT_TRUE(client.ok()) << client.status();
  ASSERT_TRUE(log::Init("warn", "json").ok());
  ::testing::internal::CaptureStderr();
  const Status put = (*client)->Put("secret-key", std::string_view("value"));
  const std::string said = ::testing::internal::GetCapturedStderr();
  ASSERT_EQ(put, OkStatus());
  const Json call = Json::parse(said, nullptr, false);
  ASSERT_TRUE(call.is_object()) << said;
  EXPECT_EQ(call["message"], "slow call");

  Json request;
  ASSERT_TRUE(Eventually([&] {
    for (const Json& line : LogOf((*started)->server(0)))
      if (line["message"] == "slow request") request = line;
    return !request.is_null();
  }));
  EXPECT_EQ(request["request"], call["request"]);
  EXPECT_EQ(request["op"], "Put");
  EXPECT_EQ(request["namespace"], "default");
  EXPECT_THAT(request["peer"].get<std::string>(), ::testing::StartsWith("127.0.0.1:"));
  EXPECT_GE(std::stod(request["ms"].get<std::string>()), 1200);
  EXPECT_EQ((*started)->server(0).ReadLog().find("secret-key"), std::string::npos);
}

}  // namespace
}  // namespace ems::testing
