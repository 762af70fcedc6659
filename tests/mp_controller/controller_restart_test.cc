// The real mp-controller, killed with -9 at random moments: what it acknowledged is there, (term,
// epoch) only grows.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <random>
#include <set>
#include <sstream>

#include "cluster/controller_client.h"
#include "common/thread_pool.h"
#include "tests/mp_controller/temp_dir.h"
#include "tests/support/eventually.h"
#include "tests/support/paths.h"

extern char** environ;

namespace ems::controller {
namespace {

Deadline Soon() { return Deadline::After(std::chrono::seconds(10)); }

// One run of the binary.
class Process final {
 public:
  explicit Process(std::vector<std::string> args) {
    args.insert(args.begin(), testing::BinDir() + "/mp-controller");
    std::vector<char*> argv;
    for (std::string& arg : args) argv.push_back(arg.data());
    argv.push_back(nullptr);
    EXPECT_EQ(posix_spawn(&pid_, argv[0], nullptr, nullptr, argv.data(), environ), 0);
  }
  ~Process() { Kill(SIGKILL); }
  // The exit code, or minus the signal.
  int Kill(int signal) {
    if (pid_ > 0) ::kill(pid_, signal);
    return Wait();
  }
  int Wait() {
    if (pid_ <= 0) return 0;
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
};

std::vector<std::string> Args(const std::string& dir) {
  return {"--set", "data_dir=" + dir + "/data", "--set",        "listen=127.0.0.1:0",
          "--set", "http_listen=127.0.0.1:0",   "--set",        "heartbeat_ms=100",
          "--set", "log_level=error",           "--ready-file", dir + "/ready"};
}

// Waits for the ready file and gives the address in it.
std::string AddressOf(const std::string& dir) {
  std::string address;
  (void)ems::testing::Eventually([&] {
    std::stringstream text;
    text << std::ifstream(dir + "/ready").rdbuf();
    const std::string line = text.str();
    const std::string mark = "\"address\":\"";
    const size_t at = line.find(mark);
    if (at == std::string::npos) return false;
    const size_t begin = at + mark.size();
    address = line.substr(begin, line.find('"', begin) - begin);
    return true;
  });
  return address;
}

// A controller that was started again makes none before it has heard its servers.
Result<NamespaceInfo> CreateNamespace(ControllerClient* client, const std::string& name) {
  NamespaceInfo wanted;
  wanted.name = name;
  Result<NamespaceInfo> made = client->CreateNamespace(wanted, Soon());
  (void)ems::testing::Eventually([&] {
    if (Message(made.status()).find("starting: ") == std::string_view::npos) return true;
    made = client->CreateNamespace(wanted, Soon());
    return false;
  });
  return made;
}

TEST(ControllerRestartTest, KillAtRandomMomentsLosesNothingAcknowledged) {
  const auto seed = static_cast<uint32_t>(Clock::System().Now().time_since_epoch().count());
  RecordProperty("seed", std::to_string(seed));
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  constexpr uint64_t kRounds = 6;
  TempDir dir;
  std::set<std::string> acknowledged;
  std::set<uint32_t> ids;
  ViewVersion last;
  for (uint64_t round = 0; round < kRounds; ++round) {
    ::unlink((dir.path() + "/ready").c_str());
    Process process(Args(dir.path()));
    const std::string address = AddressOf(dir.path());
    ASSERT_FALSE(address.empty()) << "round " << round;
    ControllerClient client(address, "restart test");
    ViewCache cache;
    ASSERT_TRUE(client.Refresh(&cache, Soon()).ok());
    // A controller that has not run for long has listened only.
    ASSERT_GE(cache.view()->version(), last) << "round " << round;
    last = cache.view()->version();
    for (const std::string& name : acknowledged) {
      ASSERT_NE(cache.namespaces()->Find(name), nullptr) << name << ", round " << round;
    }
    const int moment = static_cast<int>(random() % 40);
    std::atomic<int> made_so_far{0};
    Thread killer("killer", [&] {
      EXPECT_TRUE(ems::testing::Eventually([&] { return made_so_far >= moment; }));
      ::kill(process.pid(), SIGKILL);
    });
    for (int i = 0;; ++i) {
      const std::string name = fmt::format("r{}-{}", round, i);
      const auto made = CreateNamespace(&client, name);
      if (!made.ok()) break;
      acknowledged.insert(name);
      ++made_so_far;
      EXPECT_TRUE(ids.insert(made->ref.id.value()).second) << "an id twice";
    }
    killer.Join();
    EXPECT_EQ(process.Wait(), -SIGKILL);
  }
  EXPECT_GT(acknowledged.size(), 10u);
  ::unlink((dir.path() + "/ready").c_str());
  Process process(Args(dir.path()));
  ControllerClient client(AddressOf(dir.path()), "restart test");
  ViewCache cache;
  EXPECT_TRUE(ems::testing::Eventually([&] {
    return client.Refresh(&cache, Soon()).ok() && cache.view()->version().term() > kRounds;
  })) << "each start has a term of its own";
}

TEST(ControllerRestartTest, SigtermStopsInOrderAndExitCodesTell) {
  TempDir dir;
  Process process(Args(dir.path()));
  ASSERT_FALSE(AddressOf(dir.path()).empty());
  EXPECT_EQ(Process(Args(dir.path())).Wait(), 1) << "the folder is in use";
  const TimePoint begin = Clock::System().Now();
  EXPECT_EQ(process.Kill(SIGTERM), 0);
  EXPECT_LT(Clock::System().Now() - begin, std::chrono::seconds(10));
  EXPECT_EQ(Process({"--set", "data_dir=/x", "--set", "lease=1"}).Wait(), 2);
  EXPECT_EQ(Process({"--no-such-flag"}).Wait(), 2);
  EXPECT_EQ(Process({}).Wait(), 2) << "data_dir is required";
  EXPECT_EQ(Process({"--help"}).Wait(), 0);
  EXPECT_EQ(Process({"--version"}).Wait(), 0);
  EXPECT_EQ(Process({"--help-config"}).Wait(), 0);
}

}  // namespace
}  // namespace ems::controller
