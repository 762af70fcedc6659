// What must hold with three controllers on an etcd when the leader dies or stands still, when etcd
// does, and when all controllers are gone for a while: the data path goes on, no term is used
// twice, no view goes back, and nothing is dropped.
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cluster/controller_client.h"
#include "common/thread_pool.h"
#include "proto/controller.pb.h"
#include "tests/support/etcd_process.h"
#include "tests/support/eventually.h"
#include "tests/support/verified_load.h"

namespace ems::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int kControllers = 3, kServers = 3;
constexpr Duration kEtcdLease = seconds(2);

// Whether no thread of the process runs.
bool HasStopped(pid_t pid) {
  const std::string tasks = "/proc/" + std::to_string(pid) + "/task";
  for (const auto& task : std::filesystem::directory_iterator(tasks)) {
    std::ifstream file(task.path() / "stat");
    std::string stat;
    std::getline(file, stat);
    const size_t at = stat.rfind(") ");
    if (at == std::string::npos || stat.compare(at, 3, ") T") != 0) return false;
  }
  return true;
}

class ControllerFailoverTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (EtcdProcess::Find().empty()) GTEST_SKIP() << EtcdProcess::kNoEtcd;
    // Elections and leases of seconds, and a load that no call may fail: not beside other tests.
    const char* const wanted = std::getenv("EMS_FAILOVER");  // NOLINT(concurrency-mt-unsafe)
    if (wanted == nullptr)
      GTEST_SKIP() << "it needs a machine that does nothing else: tests/nightly.sh failover";
    char path[] = "/tmp/ems-ha-XXXXXX";
    ASSERT_NE(mkdtemp(path), nullptr);
    folder_ = path;
    auto etcd = EtcdProcess::Start(folder_);
    ASSERT_TRUE(etcd.ok()) << etcd.status();
    etcd_.emplace(std::move(*etcd));
    for (int i = 0; i < kControllers; ++i) StartController(i, "127.0.0.1:0");
    for (const Daemon& controller : controllers_)
      addresses_ += (addresses_.empty() ? "" : ",") + controller.ready().address;
    // They start while a leader is being elected.
    for (int i = 0; i < kServers; ++i) StartServer(i);
    for (Daemon& server : servers_) ASSERT_EQ(server.WaitReady(seconds(60)), OkStatus());
    control_ = std::make_unique<ControllerClient>(addresses_, "test");
    control_->StartWatch(&views_, {});
    ASSERT_TRUE(Eventually([&] { return LiveServers() == kServers; }, seconds(60)));
  }
  void TearDown() override {
    control_.reset();
    if (HasFailure()) {
      for (const Daemon& controller : controllers_)
        std::fprintf(stderr, "---- %s\n%s\n", controller.options().name.c_str(),
                     controller.ReadLog().c_str());
    }
    servers_.clear();
    controllers_.clear();
    etcd_.reset();
    std::error_code ignored;
    if (!folder_.empty()) std::filesystem::remove_all(folder_, ignored);
  }

  void StartController(int i, const std::string& listen) {
    const std::string name = "controller-" + std::to_string(i);
    auto started = Daemon::Start(
        {.program = "mp-controller",
         .folder = folder_,
         .name = name,
         .flags = {"--set", "data_dir=" + folder_ + "/" + name, "--set", "listen=" + listen,
                   "--set", "http_listen=127.0.0.1:0", "--set", "heartbeat_ms=200", "--set",
                   "lease_ms=2000", "--set", "etcd.endpoints=" + etcd_->endpoint(), "--set",
                   "etcd.lease_s=2", "--set", "etcd.timeout_ms=1000"},
         .fd_limit = {},
         .environment = {}});
    ASSERT_TRUE(started.ok()) << started.status();
    if (static_cast<size_t>(i) < controllers_.size()) {
      controllers_[static_cast<size_t>(i)] = std::move(*started);
    } else {
      controllers_.push_back(std::move(*started));
    }
    ASSERT_EQ(controllers_[static_cast<size_t>(i)].WaitReady(seconds(30)), OkStatus());
  }
  void StartServer(int i) {
    const std::string name = "server-" + std::to_string(i);
    auto started = Daemon::Start(
        {.program = "mp-server",
         .folder = folder_,
         .name = name,
         .flags = {"--set", "name=" + name, "--set", "controller=" + addresses_, "--set",
                   "data_dir=" + folder_ + "/" + name, "--set", "listen=127.0.0.1:0", "--set",
                   "http_listen=127.0.0.1:0", "--set", "dram.bytes=128MiB"},
         .fd_limit = {},
         .environment = {}});
    ASSERT_TRUE(started.ok()) << started.status();
    servers_.push_back(std::move(*started));
  }

  int LiveServers() {
    v1::ListNodesReply nodes;
    if (!control_->ListNodes(&nodes, Deadline::After(seconds(1))).ok()) return -1;
    return static_cast<int>(std::ranges::count_if(nodes.nodes(), [](const v1::NodeStatus& one) {
      return one.node().state() == v1::NODE_LIVE;
    }));
  }
  // Which controller answers by itself; -1: none.
  int Leader() {
    for (int i = 0; i < kControllers; ++i) {
      ControllerClient one(controllers_[static_cast<size_t>(i)].ready().address, "test");
      v1::ListNodesReply nodes;
      if (one.ListNodes(&nodes, Deadline::After(milliseconds(300))).ok()) return i;
    }
    return -1;
  }
  // Waits for another leader than `old` (-1: any); which one.
  int WaitForLeader(int old, Duration timeout = seconds(20)) {
    int leader = -1;
    EXPECT_TRUE(Eventually(
        [&] {
          leader = Leader();
          return leader >= 0 && leader != old;
        },
        timeout));
    return leader;
  }
  Result<std::unique_ptr<Client>> Connect() {
    ClientOptions options;
    options.controller = addresses_;
    options.start_timeout = seconds(60);
    return Client::Connect(options);
  }
  ViewCache::View KnownView() {
    const ViewCache::View view =
        views_.WaitForView(ViewVersion(1, 0), Deadline::After(seconds(30)));
    EXPECT_NE(view, nullptr) << "no view";
    return view;
  }
  // The view of a term after `before`'s, with the same servers and owners.
  void ExpectNextTerm(const ViewCache::View& before) {
    ASSERT_NE(before, nullptr);
    const ViewCache::View after = views_.WaitForView(ViewVersion(before->version().term() + 1, 0),
                                                     Deadline::After(seconds(30)));
    ASSERT_NE(after, nullptr) << "no view of a later term";
    EXPECT_GT(after->version().epoch(), before->version().epoch());
    EXPECT_EQ(after->cluster(), before->cluster());
    EXPECT_EQ(after->slots(), before->slots());
    EXPECT_FALSE(after->frozen());
  }
  // A load that has met nothing wrong, no error, and hits as before.
  void ExpectUndisturbed(VerifiedLoad* load) {
    ASSERT_TRUE(load->WaitForCalls(500, seconds(30)));
    load->Stop();
    const LoadCounts counts = load->Take();
    EXPECT_TRUE(counts.right()) << counts.ToText();
    EXPECT_TRUE(counts.errors.empty()) << counts.ToText();
    EXPECT_GT(counts.hit_share(), 0.5) << counts.ToText();
  }

  std::string folder_;
  std::optional<EtcdProcess> etcd_;
  std::vector<Daemon> controllers_, servers_;
  std::string addresses_;
  ViewCache views_;
  std::unique_ptr<ControllerClient> control_;
};

TEST_F(ControllerFailoverTest, TheLeaderIsKilledAndAnotherTakesOver) {
  auto client = Connect();
  ASSERT_TRUE(client.ok()) << client.status();
  NamespaceInfo wanted;
  wanted.name = "kept";
  const auto made = control_->CreateNamespace(wanted, Deadline::After(seconds(10)));
  ASSERT_TRUE(made.ok()) << made.status();
  const int old = WaitForLeader(-1);
  const ViewCache::View before = KnownView();
  VerifiedLoad load(client->get(), {});
  ASSERT_TRUE(load.WaitForCalls(1000, seconds(30)));
  (void)load.Take();

  controllers_[static_cast<size_t>(old)].Kill();
  const TimePoint killed = Clock::System().Now();
  (void)WaitForLeader(old);
  EXPECT_LE(Clock::System().Now() - killed, kEtcdLease + seconds(3));
  ExpectNextTerm(before);
  ASSERT_TRUE(Eventually([&] { return LiveServers() == kServers; }));
  ExpectUndisturbed(&load);
  const auto kept = control_->GetNamespace("kept", Deadline::After(seconds(10)));
  ASSERT_TRUE(kept.ok()) << kept.status();
  EXPECT_EQ(kept->ref, made->ref);

  // The one that was killed follows when it is back.
  StartController(old, controllers_[static_cast<size_t>(old)].ready().address);
  EXPECT_NE(Leader(), old);
}

TEST_F(ControllerFailoverTest, ALeaderThatStoodStillStepsDownAndWritesNothing) {
  auto client = Connect();
  ASSERT_TRUE(client.ok()) << client.status();
  const int old = WaitForLeader(-1);
  Daemon& paused = controllers_[static_cast<size_t>(old)];
  const ViewCache::View before = KnownView();
  VerifiedLoad load(client->get(), {});
  ASSERT_TRUE(load.WaitForCalls(1000, seconds(30)));
  (void)load.Take();

  // A connection that stands already, so that the call waits in the paused process.
  ControllerClient one(paused.ready().address, "test");
  v1::ListNodesReply nodes;
  ASSERT_EQ(one.ListNodes(&nodes, Deadline::After(seconds(5))), OkStatus());
  paused.Signal(SIGSTOP);
  // Each thread: one that still ran could hand the change to etcd, as the leader that it is.
  ASSERT_TRUE(Eventually([&] { return HasStopped(paused.pid()); }));
  Status answer;
  Thread late("late", [&] {
    NamespaceInfo wanted;
    wanted.name = "late";
    answer = one.CreateNamespace(wanted, Deadline::After(seconds(30))).status();
  });
  const int next = WaitForLeader(old);
  ASSERT_GE(next, 0);
  ExpectNextTerm(before);
  paused.Signal(SIGCONT);
  late.Join();
  // Refused by its own word, or because the server that it had while it led has ended; or, where it
  // named the leader in time, done there.
  const StatusCode found =
      control_->GetNamespace("late", Deadline::After(seconds(10))).status().code();
  if (answer.ok()) {
    EXPECT_EQ(found, StatusCode::kOk);
  } else {
    EXPECT_TRUE(answer.code() == StatusCode::kUnavailable ||
                answer.code() == StatusCode::kCancelled)
        << answer;
    EXPECT_EQ(found, StatusCode::kNotFound);
  }
  EXPECT_TRUE(Eventually([&] {
    const Status status = one.ListNodes(&nodes, Deadline::After(seconds(1)));
    return Message(status).find(controllers_[static_cast<size_t>(next)].ready().address) !=
           std::string_view::npos;
  })) << "it follows, and names the leader";
  EXPECT_EQ(Leader(), next);
  ExpectUndisturbed(&load);
}

TEST_F(ControllerFailoverTest, EtcdStandsStillAndTheDataPathGoesOn) {
  auto client = Connect();
  ASSERT_TRUE(client.ok()) << client.status();
  const int old = WaitForLeader(-1);
  const ViewCache::View before = KnownView();
  VerifiedLoad load(client->get(), {});
  ASSERT_TRUE(load.WaitForCalls(1000, seconds(30)));
  (void)load.Take();

  etcd_->process().Signal(SIGSTOP);
  // Without etcd nobody leads; servers' leases of 2 s end meanwhile.
  ASSERT_TRUE(Eventually([&] { return Leader() < 0; }));
  const Deadline dark = Deadline::After(2 * kEtcdLease);
  ASSERT_TRUE(load.WaitForCalls(1000, seconds(30)));
  ASSERT_TRUE(Eventually([&] { return dark.Passed(); }));
  EXPECT_EQ(Leader(), -1);
  for (Daemon& controller : controllers_) EXPECT_TRUE(controller.running());
  etcd_->process().Signal(SIGCONT);
  (void)WaitForLeader(-1);
  ExpectNextTerm(before);
  ASSERT_TRUE(Eventually([&] { return LiveServers() == kServers; }));
  ExpectUndisturbed(&load);
  (void)old;
}

TEST_F(ControllerFailoverTest, AllControllersAreGoneAndAClientStartsMeanwhile) {
  auto client = Connect();
  ASSERT_TRUE(client.ok()) << client.status();
  const ViewCache::View before = KnownView();
  VerifiedLoad load(client->get(), {});
  ASSERT_TRUE(load.WaitForCalls(1000, seconds(30)));
  (void)load.Take();

  std::vector<std::string> listens;
  for (Daemon& controller : controllers_) {
    listens.push_back(controller.ready().address);
    controller.Kill();
  }
  Result<std::unique_ptr<Client>> started = Error(StatusCode::kUnavailable, "not yet");
  Thread starting("starting", [&] { started = Connect(); });
  ASSERT_TRUE(load.WaitForCalls(1000, seconds(30)));
  for (int i = 0; i < kControllers; ++i) StartController(i, listens[static_cast<size_t>(i)]);
  ExpectNextTerm(before);
  starting.Join();
  ASSERT_TRUE(started.ok()) << started.status();
  ASSERT_TRUE(Eventually([&] { return LiveServers() == kServers; }));
  ExpectUndisturbed(&load);
}

}  // namespace
}  // namespace ems::testing
