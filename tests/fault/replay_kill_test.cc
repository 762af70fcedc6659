// What must hold when a server dies in the middle of a trace replay: it goes on to its end, every
// byte that is loaded is right, no call is late, and the new owners serve.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "common/thread_pool.h"
#include "tests/support/cluster.h"
#include "tests/support/eventually.h"

namespace ems::testing {
namespace {

constexpr Duration kTakeOverMax = std::chrono::seconds(7);
constexpr Duration kReplayMax = std::chrono::seconds(90);

TEST(ReplayKillTest, ReplayGoesOnWithoutAWrongByteOrALateCall) {
  auto cluster =
      Cluster::Start({.controller_flags = {"--set", "heartbeat_ms=1000"}, .server_flags = {}});
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  const std::string path = (*cluster)->folder() + "/trace.json";
  // The trace's own times, 60 times as fast: about a quarter of a minute.
  const std::vector<std::string> flags = {"trace",
                                          "--controller",
                                          (*cluster)->controller_address(),
                                          "--requests",
                                          "3000",
                                          "--speedup",
                                          "60",
                                          "--concurrency",
                                          "4",
                                          "--expect-errors",
                                          "--json",
                                          path};
  Result<ProgramOutput> replay = Error(StatusCode::kUnavailable, "not run");
  Thread runner("replay", [&] { replay = RunProgram("ems-bench", flags, kReplayMax); });
  // Once the replay has stored something on it, the server dies.
  auto client = (*cluster)->Connect();
  ASSERT_TRUE(client.ok()) << client.status();
  nlohmann::json stats;
  // Reads of this host leave no trace in the server's counters; what is stored does.
  const auto has_stored = [&] {
    const auto text = (*client)->ServerStats(Cluster::ServerName(1), std::chrono::seconds(1));
    EXPECT_TRUE(text.ok()) << text.status();
    stats = nlohmann::json::parse(text.value_or(""), nullptr, false);
    uint64_t most = 0;
    for (const auto& ns : stats["namespaces"]) most = std::max(most, ns["objects"].get<uint64_t>());
    return !text.ok() || most >= 1500;
  };
  ASSERT_TRUE(Eventually(has_stored)) << stats.dump();
  (*cluster)->server(1).Kill();
  EXPECT_EQ((*cluster)->WaitForServers(2, kTakeOverMax), OkStatus());
  runner.Join();

  ASSERT_TRUE(replay.ok()) << replay.status();
  std::ifstream file(path);
  const auto json = nlohmann::json::parse(file, nullptr, false);
  ASSERT_TRUE(json.is_object()) << replay->out;
  EXPECT_EQ(replay->exit_code, 0) << replay->out;
  EXPECT_EQ(json["requests"], 3000) << replay->out;
  EXPECT_EQ(json["wrong_bytes"], 0) << replay->out;
  EXPECT_EQ(json["calls_above_deadline"], 0) << replay->out;
  EXPECT_GT(json["loaded_bytes"], 0) << replay->out;
}

}  // namespace
}  // namespace ems::testing
