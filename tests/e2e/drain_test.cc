// What must hold: a server that is taken out, by an operator or by SIGTERM, or that comes, fails no
// call of clients; what it had is found at the others; and it never takes longer to stop than it
// may.
#include <gtest/gtest.h>
#include <signal.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/cluster.h"
#include "tests/support/eventually.h"
#include "tests/support/verified_load.h"

namespace ems::testing {
namespace {

using std::chrono::seconds;

constexpr int kKeys = 600;
constexpr Duration kSoon = seconds(30);
constexpr Duration kCallTimeout = seconds(10);

class DrainE2eTest : public ::testing::TestWithParam<TransportChoice> {
 protected:
  void Begin(std::vector<std::string> server_flags = {}, const std::string& lease_ms = "5000") {
    // Hits are counted here, not their time, on a machine that others use as well.
    server_flags.insert(server_flags.end(), {"--set", "forward.timeout_ms=2000"});
    auto started = Cluster::Start(
        {.controller_flags = {"--set", "lease_ms=" + lease_ms, "--set", "damping_ms=0"},
         .server_flags = std::move(server_flags)});
    ASSERT_TRUE(started.ok()) << started.status();
    cluster_ = *std::move(started);
    auto connected = cluster_->Connect(GetParam(), kCallTimeout);
    ASSERT_TRUE(connected.ok()) << connected.status();
    client_ = *std::move(connected);
  }
  void BeginLoad() {
    load_ = std::make_unique<VerifiedLoad>(
        client_.get(),
        VerifiedLoad::Options{.value_bytes_max = 16 * kKiB, .timeout = kCallTimeout});
    ASSERT_TRUE(load_->WaitForCalls(300, kSoon));
  }
  // Calls go on, and none has failed, nor returned what it must not.
  void ExpectNoCallFailed() {
    ASSERT_TRUE(load_->WaitForCalls(300, kSoon));
    load_->Stop();
    const LoadCounts counts = load_->Take();
    EXPECT_TRUE(counts.right()) << counts.ToText();
    EXPECT_TRUE(counts.errors.empty()) << counts.ToText();
    EXPECT_GT(counts.hits, 0u);
  }
  static std::string KeyOf(int key) { return "key-" + std::to_string(key); }
  static std::string ValueOf(int key) {
    return std::string(100 + static_cast<size_t>(key) * 37 % 9000,
                       static_cast<char>('a' + key % 26)) +
           std::to_string(key);
  }
  void Fill() {
    for (int i = 0; i < kKeys; ++i)
      ASSERT_EQ(client_->Put(KeyOf(i), std::string_view(ValueOf(i))), OkStatus());
  }
  int Hits() {
    int hits = 0;
    for (int i = 0; i < kKeys; ++i) {
      const Result<std::string> got = client_->Get(KeyOf(i));
      if (!got.ok()) {
        EXPECT_EQ(got.status().code(), StatusCode::kNotFound) << got.status();
        continue;
      }
      EXPECT_EQ(*got, ValueOf(i)) << KeyOf(i);
      ++hits;
    }
    return hits;
  }
  ProgramOutput Emsctl(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(),
                     {"--controller", cluster_->controller_address(), "--timeout", "10"});
    const Result<ProgramOutput> ran = RunProgram("emsctl", arguments, seconds(60));
    EXPECT_TRUE(ran.ok()) << ran.status();
    return ran.ok() ? *ran : ProgramOutput{.exit_code = -1, .out = {}};
  }
  nlohmann::json NodeJson(int server) {
    const ProgramOutput listed = Emsctl({"--json", "node", "list"});
    const auto list = nlohmann::json::parse(listed.out, nullptr, false);
    EXPECT_TRUE(list.is_array()) << listed.out;
    for (const auto& node : list)
      if (node["name"] == Cluster::ServerName(server)) return node;
    ADD_FAILURE() << listed.out;
    return {};
  }
  void AwaitExit(int server, Duration within = kSoon) {
    const Result<int> code = cluster_->server(server).WaitExit(within);
    ASSERT_TRUE(code.ok()) << code.status();
    EXPECT_EQ(*code, 0) << cluster_->server(server).ReadLog();
  }

  std::unique_ptr<Cluster> cluster_;
  std::unique_ptr<Client> client_;
  std::unique_ptr<VerifiedLoad> load_;
};

TEST_P(DrainE2eTest, AServerThatIsDrainedAndStoppedFailsNoCallAndLosesNothing) {
  Begin();
  Fill();
  BeginLoad();
  const ProgramOutput drained = Emsctl({"node", "drain", "server-1", "--wait=40"});
  EXPECT_EQ(drained.exit_code, 0) << drained.out;
  EXPECT_EQ(NodeJson(1)["drain"], "drained");
  EXPECT_EQ(NodeJson(1)["slots"], 0);
  EXPECT_NE(Emsctl({"status"}).out.find("1 DRAINED"), std::string::npos);
  cluster_->server(1).Signal(SIGTERM);
  AwaitExit(1);
  ASSERT_EQ(cluster_->WaitForServers(2, kSoon), OkStatus());
  EXPECT_EQ(Hits(), kKeys);
  ExpectNoCallFailed();
}

TEST_P(DrainE2eTest, SigtermFailsNoCall) {
  Begin();
  Fill();
  BeginLoad();
  cluster_->server(1).Signal(SIGTERM);
  AwaitExit(1);
  ASSERT_EQ(cluster_->WaitForServers(2, kSoon), OkStatus());
  ExpectNoCallFailed();
  EXPECT_NE(cluster_->server(1).ReadLog().find("drain ends owned_slots=0"), std::string::npos);
  EXPECT_EQ(NodeJson(1)["state"], "left");
}

TEST_P(DrainE2eTest, AServerThatComesFailsNoCall) {
  Begin();
  cluster_->server(2).Signal(SIGTERM);
  AwaitExit(2);
  ASSERT_EQ(cluster_->WaitForServers(2, kSoon), OkStatus());
  BeginLoad();
  ASSERT_EQ(cluster_->RestartServer(2), OkStatus());
  ASSERT_EQ(cluster_->WaitForServers(3, kSoon), OkStatus());
  ExpectNoCallFailed();
}

TEST_P(DrainE2eTest, ItStaysDrainedWhenItIsStartedAgainUntilThatIsCancelled) {
  Begin();
  ASSERT_EQ(Emsctl({"node", "drain", "server-1", "--wait=40"}).exit_code, 0);
  cluster_->server(1).Signal(SIGTERM);
  AwaitExit(1);
  EXPECT_EQ(NodeJson(1)["drain"], "drained");
  ASSERT_EQ(cluster_->RestartServer(1), OkStatus()) << "it is ready, and owns nothing";
  ASSERT_EQ(cluster_->WaitForServers(3, kSoon), OkStatus());
  EXPECT_EQ(NodeJson(1)["slots"], 0);
  EXPECT_EQ(NodeJson(1)["drain"], "drained");
  const ProgramOutput cancelled = Emsctl({"node", "drain", "server-1", "--cancel", "--wait=40"});
  EXPECT_EQ(cancelled.exit_code, 0) << cancelled.out;
  EXPECT_GT(NodeJson(1)["slots"], 0);
  EXPECT_EQ(NodeJson(1)["drain"], "none");
}

TEST_P(DrainE2eTest, TheLastServerAndOneThatIsNotKnownAreRefusedByName) {
  Begin();
  const ProgramOutput unknown = Emsctl({"node", "drain", "server-9"});
  EXPECT_EQ(unknown.exit_code, 3) << unknown.out;
  ASSERT_EQ(Emsctl({"node", "drain", "server-0"}).exit_code, 0);
  ASSERT_EQ(Emsctl({"node", "drain", "server-1"}).exit_code, 0);
  const ProgramOutput last = Emsctl({"node", "drain", "server-2"});
  EXPECT_EQ(last.exit_code, 1) << last.out;
  EXPECT_NE(last.out.find("no other server could have its slots"), std::string::npos) << last.out;
}

TEST_P(DrainE2eTest, WithoutAControllerOrAnotherServerItStopsAtOnce) {
  Begin({"--set", "stop.drain_s=600"});
  for (int i = 0; i < 3; ++i) cluster_->server(i).Signal(SIGTERM);
  for (int i = 0; i < 3; ++i) AwaitExit(i);
  for (int i = 0; i < 2; ++i) ASSERT_EQ(cluster_->RestartServer(i), OkStatus());
  cluster_->controller().Kill();
  cluster_->server(0).Signal(SIGTERM);
  AwaitExit(0);
}

// A server that stands still may have slots to fetch, as far as anybody knows.
TEST_P(DrainE2eTest, ASecondSignalEndsItAndSoDoesItsTime) {
  Begin({"--set", "stop.drain_s=600"}, "120000");
  cluster_->server(2).Signal(SIGSTOP);
  cluster_->server(1).Signal(SIGTERM);
  ASSERT_TRUE(Eventually([&] { return NodeJson(1)["drain"] == "draining"; }));
  ASSERT_TRUE(Eventually([&] { return NodeJson(1)["slots"] == 0; }));
  EXPECT_TRUE(cluster_->server(1).running());
  cluster_->server(1).Signal(SIGTERM);
  AwaitExit(1);
  cluster_->server(2).Signal(SIGCONT);
  ASSERT_EQ(cluster_->RestartServer(1, {"--set", "stop.drain_s=2"}), OkStatus());
  ASSERT_EQ(cluster_->WaitForServers(3, kSoon), OkStatus());
  cluster_->server(2).Signal(SIGSTOP);
  cluster_->server(1).Signal(SIGTERM);
  AwaitExit(1);
  cluster_->server(2).Signal(SIGCONT);
}

INSTANTIATE_TEST_SUITE_P(Transports, DrainE2eTest,
                         ::testing::Values(TransportChoice::kAuto, TransportChoice::kTcp),
                         [](const auto& one) {
                           return one.param == TransportChoice::kTcp ? "Tcp" : "Shared";
                         });

}  // namespace
}  // namespace ems::testing
