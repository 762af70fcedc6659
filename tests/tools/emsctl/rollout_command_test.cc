// What must hold: servers are restarted one after another by the operator's command; what they had
// is found afterwards and no call fails meanwhile; and the first thing that goes wrong ends it,
// named, with the others left as they were.
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>

#include "common/thread_pool.h"
#include "tests/support/eventually.h"
#include "tests/support/verified_load.h"
#include "tests/tools/emsctl/emsctl_test.h"

namespace ems::emsctl {
namespace {

using std::chrono::seconds;
using testing::Cluster;
using testing::Daemon;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kKeys = 400;
constexpr Duration kCallTimeout = seconds(20);

// Servers on this machine, restarted as an operator's script would: it asks by a file in a folder,
// and this thread, which may start them, does it.
class RolloutTest : public ::testing::Test {
 protected:
  void Begin(bool holders, const std::string& lease_ms = "20000") {
    auto started = Cluster::Start(
        {.controller_flags = {"--set", "damping_ms=0", "--set", "lease_ms=" + lease_ms},
         .server_flags = {"--set", "forward.timeout_ms=2000"}});
    ASSERT_TRUE(started.ok()) << started.status();
    cluster_ = *std::move(started);
    asked_ = cluster_->folder() + "/asked";
    std::filesystem::create_directories(asked_);
    for (int i = 0; holders && i < 3; ++i) {
      // Each server finds the holder at its next start.
      const std::string socket = cluster_->folder() + "/" + Cluster::ServerName(i) + "/holder.sock";
      auto holder = Daemon::Start({.program = "mp-server",
                                   .folder = cluster_->folder(),
                                   .name = "holder-" + std::to_string(i),
                                   .flags = {"--hold", socket},
                                   .fd_limit = std::nullopt});
      ASSERT_TRUE(holder.ok()) << holder.status();
      holders_.push_back(*std::move(holder));
      ASSERT_EQ(holders_.back().WaitReady(seconds(30)), OkStatus());
    }
    for (int i = 0; holders && i < 3; ++i) Restart(i);
    auto connected = cluster_->Connect(TransportChoice::kTcp, kCallTimeout);
    ASSERT_TRUE(connected.ok()) << connected.status();
    client_ = *std::move(connected);
  }
  // What `systemctl restart` does.
  void Restart(int server) {
    cluster_->server(server).Signal(SIGTERM);
    ASSERT_TRUE(cluster_->server(server).WaitExit(seconds(30)).ok());
    ASSERT_EQ(cluster_->RestartServer(server), OkStatus());
  }
  void Fill() {
    for (int i = 0; i < kKeys; ++i)
      ASSERT_EQ(client_->Put("key-" + std::to_string(i), std::string_view(std::string(2000, 'v'))),
                OkStatus());
  }
  int Hits() {
    int hits = 0;
    for (int i = 0; i < kKeys; ++i) hits += client_->Get("key-" + std::to_string(i)).ok() ? 1 : 0;
    return hits;
  }
  // The operator's script: asks, and waits for the answer.
  std::string Command(const std::string& name = "{name}") const {
    return "sh -c 'touch " + asked_ + "/$1; while test -e " + asked_ +
           "/$1; do sleep 0.1; done' sh " + name;
  }
  // Runs emsctl, and meanwhile `answer` for each server that the script asks for.
  testing::ProgramOutput Roll(std::vector<std::string> flags,
                              const std::function<void(int)>& answer = {}) {
    if (std::ranges::count(flags, "--wait") == 0) flags.insert(flags.end(), {"--wait", "120"});
    flags.insert(flags.begin(), {"--controller", cluster_->controller_address(), "--timeout", "10",
                                 "rollout", "restart"});
    std::atomic<bool> ended{false};
    testing::ProgramOutput output;
    Thread emsctl("emsctl", [&] {
      const auto ran = testing::RunProgram("emsctl", flags, seconds(240));
      EXPECT_TRUE(ran.ok()) << ToString(ran.status());
      if (ran.ok()) output = *ran;
      ended.store(true);
    });
    StopFlag pause;
    while (!ended.load()) {
      for (int i = 0; i < 3; ++i) {
        const std::string file = asked_ + "/" + Cluster::ServerName(i);
        if (!std::filesystem::exists(file)) continue;
        order_ += std::to_string(i);
        answer ? answer(i) : Restart(i);
        std::filesystem::remove(file);
      }
      pause.WaitFor(std::chrono::milliseconds(20));
    }
    emsctl.Join();
    return output;
  }
  void ExpectAllKept(const std::string& method) {
    Fill();
    testing::VerifiedLoad load(client_.get(),
                               {.value_bytes_max = 16 * kKiB, .timeout = kCallTimeout});
    ASSERT_TRUE(load.WaitForCalls(200, seconds(30)));
    const testing::ProgramOutput rolled = Roll({"--command", Command()});
    EXPECT_EQ(rolled.exit_code, 0) << rolled.out;
    EXPECT_EQ(order_, "012");
    EXPECT_THAT(rolled.out, HasSubstr("3 servers are restarted"));
    EXPECT_THAT(rolled.out, HasSubstr("[2/3] server-1: "));
    ASSERT_TRUE(load.WaitForCalls(200, seconds(30)));
    load.Stop();
    const testing::LoadCounts counts = load.Take();
    EXPECT_TRUE(counts.right()) << counts.ToText();
    EXPECT_TRUE(counts.errors.empty()) << counts.ToText();
    EXPECT_GE(Hits(), kKeys * 95 / 100);
    const testing::ProgramOutput plan = Roll({"--command", Command(), "--dry-run"});
    EXPECT_THAT(plan.out, HasSubstr("server-2: " + method));
  }

  std::vector<Daemon> holders_;
  std::unique_ptr<Cluster> cluster_;
  std::unique_ptr<Client> client_;
  std::string asked_, order_;
};

TEST_F(RolloutTest, DrainedServersKeepWhatTheyHaveInMemoryAndNoCallFails) {
  Begin(false);
  ExpectAllKept("drain, restart, cancel");
}

TEST_F(RolloutTest, ServersWithAHolderAreRestartedInPlace) {
  Begin(true);
  Fill();
  const testing::ProgramOutput rolled = Roll({"--command", Command()});
  EXPECT_EQ(rolled.exit_code, 0) << rolled.out;
  EXPECT_EQ(order_, "012");
  EXPECT_THAT(rolled.out, Not(HasSubstr("draining")));
  EXPECT_GE(Hits(), kKeys * 95 / 100);
}

TEST_F(RolloutTest, TheFirstFailureEndsItAndSaysWhatIsToBeDone) {
  Begin(false);
  // A command that fails.
  testing::ProgramOutput rolled =
      Roll({"--method", "hold", "--command", "sh -c 'exit 7' {name}", "--json"});
  EXPECT_EQ(rolled.exit_code, 1) << rolled.out;
  EXPECT_THAT(rolled.out, HasSubstr("ended with exit code 7"));
  EXPECT_THAT(rolled.out, HasSubstr("\"failed\": \"server-0\""));
  // One that restarts nothing.
  rolled = Roll({"server-1", "--method", "hold", "--wait", "2", "--command", "true {name}"});
  EXPECT_NE(rolled.exit_code, 0);
  EXPECT_THAT(rolled.out, HasSubstr("it is the same process as before"));
  // One that comes back without what it had.
  Fill();
  rolled = Roll({"--method", "hold", "--command", Command()}, [&](int server) {
    cluster_->server(server).Kill();
    ASSERT_EQ(cluster_->RestartServer(server), OkStatus());
  });
  EXPECT_EQ(rolled.exit_code, 1) << rolled.out;
  EXPECT_EQ(order_, "0") << "the others are as they were";
  EXPECT_THAT(rolled.out, HasSubstr("it came back cold"));
  EXPECT_THAT(rolled.out, HasSubstr("0 of 3 servers are restarted"));
}

TEST_F(RolloutTest, NothingIsTouchedWhileTheClusterIsNotWell) {
  Begin(false, "2000");
  cluster_->server(2).Kill();
  ASSERT_EQ(cluster_->WaitForServers(2, seconds(30)), OkStatus());
  const testing::ProgramOutput rolled =
      Roll({"server-0", "--wait", "2", "--command", "touch " + asked_ + "/ran-{name}"});
  EXPECT_EQ(rolled.exit_code, 4) << rolled.out;
  EXPECT_THAT(rolled.out, HasSubstr("server-2"));
  EXPECT_FALSE(std::filesystem::exists(asked_ + "/ran-server-0"));
}

TEST_F(RolloutTest, AWrongCommandIsAUsageErrorAndADryRunDoesNothing) {
  Begin(false);
  EXPECT_EQ(Roll({"--command", "systemctl restart mp-server"}).exit_code, 2);
  const testing::ProgramOutput plan =
      Roll({"--dry-run", "--command", "touch " + asked_ + "/ran-{name}-{host}", "--json"});
  EXPECT_EQ(plan.exit_code, 0) << plan.out;
  const auto json = nlohmann::json::parse(plan.out, nullptr, false);
  ASSERT_EQ(json["plan"].size(), 3u) << plan.out;
  EXPECT_EQ(json["plan"][1]["name"], "server-1");
  EXPECT_EQ(json["plan"][1]["command"][1], asked_ + "/ran-server-1-127.0.0.1");
  EXPECT_TRUE(std::filesystem::is_empty(asked_));
}

}  // namespace
}  // namespace ems::emsctl
