// What must hold when the server stands still, is expelled or has very much memory: a Put that was
// abandoned stores nothing that came later, views keep their bytes, and no session is lost for want
// of room in a socket.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/mp_controller/temp_dir.h"
#include "tests/support/cluster.h"
#include "tests/support/eventually.h"
#include "tests/support/raw_connection.h"
#include "tests/support/self_verifying.h"

namespace ems::testing {
namespace {

using namespace std::chrono_literals;

// Whether a signal has brought the process to a stop; until then it goes on for a moment.
bool StandsStill(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  const std::string stat{std::istreambuf_iterator<char>(file), {}};
  const size_t name_end = stat.rfind(") ");
  return name_end != std::string::npos && stat[name_end + 2] == 'T';
}

// A child that holds every descriptor and does nothing, as the workers of an engine may.
class IdleChild final {
 public:
  IdleChild() : pid_(fork()) {
    while (pid_ == 0) pause();
  }
  ~IdleChild() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  IdleChild(const IdleChild&) = delete;
  IdleChild& operator=(const IdleChild&) = delete;

 private:
  const pid_t pid_;
};

class OneSidedFaultsTest : public ::testing::Test {
 protected:
  void Begin(int servers, std::vector<std::string> server_flags,
             std::vector<std::string> controller_flags = {}) {
    server_flags.insert(server_flags.end(), {"--set", "dram.huge_pages=off"});
    auto started = Cluster::Start({.servers = servers,
                                   .controller_flags = std::move(controller_flags),
                                   .server_flags = std::move(server_flags)});
    ASSERT_TRUE(started.ok()) << started.status();
    cluster_ = *std::move(started);
    auto connected = cluster_->Connect();
    ASSERT_TRUE(connected.ok()) << connected.status();
    client_ = *std::move(connected);
  }
  // Puts until the server has taken the client's memory: from then on values are staged.
  void WarmUp(const std::string& value) {
    ASSERT_TRUE(client_->Put("warm", std::string_view(value)).ok());
    ASSERT_TRUE(Eventually([&] {
      const auto view = client_->GetView("warm");
      return view.ok() && view->mapped();
    }));
    // A Put before the client was attached went over the socket, and registered nothing.
    ASSERT_TRUE(Eventually([&] {
      EXPECT_TRUE(client_->Put("warm", std::string_view(value)).ok());
      return RegisteredBytes() > 0;
    }));
  }
  // What clients have registered for staged Puts, as the server says.
  double RegisteredBytes() {
    constexpr std::string_view kName = "\nems_server_shm_registered_bytes ";
    const auto metrics = HttpGet(cluster_->server(0).ready().http_address, "/metrics");
    const size_t at = metrics.ok() ? metrics->find(kName) : std::string::npos;
    return at == std::string::npos ? 0 : std::atof(metrics->c_str() + at + kName.size());
  }
  // The value of `key` as the server has it.
  Result<std::string> Stored(const std::string& key) {
    auto other = cluster_->Connect(TransportChoice::kTcp);
    if (!other.ok()) return other.status();
    return (*other)->Get(key);
  }

  std::unique_ptr<Cluster> cluster_;
  std::unique_ptr<Client> client_;
};

TEST_F(OneSidedFaultsTest, WithoutTheTokenReadsTakeTheSocket) {
  const controller::TempDir folder;
  const std::string tokens = folder.path() + "/tokens";
  std::ofstream(tokens) << "default s3cret\n";
  Begin(1, {"--set", "dram.bytes=64MiB", "--set", "shm.token_file=" + tokens});
  ASSERT_TRUE(client_->Put("key", std::string_view("value")).ok());
  ClientOptions options;
  options.controller = cluster_->controller_address();
  options.shm_token = "s3cret";
  auto trusted = Client::Connect(options);
  ASSERT_TRUE(trusted.ok()) << trusted.status();
  EXPECT_TRUE(Eventually([&] {
    const auto view = (*trusted)->GetView("key");
    return view.ok() && view->mapped();
  }));
  const auto view = client_->GetView("key");
  ASSERT_TRUE(view.ok()) << view.status();
  EXPECT_FALSE(view->mapped());
  EXPECT_EQ(AsText(view->bytes()), "value");
  EXPECT_EQ(client_->stats().one_sided, 0u);
}

TEST_F(OneSidedFaultsTest, AServerThatStopsSharingLeavesViewsAndServesTheSocket) {
  Begin(1, {"--set", "dram.bytes=64MiB"}, {"--set", "damping_ms=0"});
  const std::string value = MakeValue("default", "key", 1, 100'000);
  ASSERT_TRUE(client_->Put("key", std::string_view(value)).ok());
  Result<ObjectView> view = client_->GetView("key");
  ASSERT_TRUE(Eventually([&] {
    view = client_->GetView("key");
    return view.ok() && view->mapped();
  }));
  Daemon& server = cluster_->server(0);
  server.Signal(SIGTERM);
  ASSERT_TRUE(server.WaitExit(20s).ok());
  Daemon::Options options = server.options();
  options.flags.insert(options.flags.end(), {"--set", "shm.share=off"});
  auto again = Daemon::Start(options);
  ASSERT_TRUE(again.ok()) << again.status();
  server = *std::move(again);
  ASSERT_TRUE(server.WaitReady(20s).ok());
  EXPECT_EQ(AsText(view->bytes()), value) << "as it was, though its server is gone";
  ASSERT_TRUE(Eventually([&] { return client_->Put("key", std::string_view(value)).ok(); }));
  const ClientStats before = client_->stats();
  const auto copy = client_->GetView("key");
  ASSERT_TRUE(copy.ok()) << copy.status();
  EXPECT_FALSE(copy->mapped());
  EXPECT_EQ(AsText(copy->bytes()), value);
  EXPECT_EQ(client_->stats().one_sided, before.one_sided);
  EXPECT_GT(client_->stats().not_attached, before.not_attached);
}

TEST_F(OneSidedFaultsTest, APutThatWasGivenUpStoresNothingThatCameLater) {
  Begin(1, {"--set", "dram.bytes=128MiB"});
  constexpr size_t kBytes = 256 * kKiB;
  WarmUp(std::string(kBytes, 'w'));
  auto buffer = client_->AllocateBuffer(kBytes);
  ASSERT_TRUE(buffer.ok()) << buffer.status();
  ASSERT_TRUE(client_->Put("staged", ConstBytes(buffer->bytes())).ok());
  const IdleChild child;
  PutOptions options;
  options.timeout = 200ms;
  cluster_->server(0).Signal(SIGSTOP);
  ASSERT_TRUE(Eventually([&] { return StandsStill(cluster_->server(0).pid()); }));
  std::fill(buffer->bytes().begin(), buffer->bytes().end(), std::byte{'A'});
  const Status registered = client_->Put("registered", ConstBytes(buffer->bytes()), options);
  std::fill(buffer->bytes().begin(), buffer->bytes().end(), std::byte{'B'});
  const std::string first(kBytes, 'A'), second(kBytes, 'B');
  const Status ordinary = client_->Put("ordinary", std::string_view(first), options);
  (void)client_->Put("another", std::string_view(second), options);
  cluster_->server(0).Signal(SIGCONT);
  EXPECT_EQ(registered.code(), StatusCode::kDeadlineExceeded) << registered;
  EXPECT_FALSE(ordinary.ok());
  // An abandoned Put may still be stored for a while; watched for a second.
  std::string wrong;
  (void)Eventually(
      [&] {
        for (const std::string key : {"registered", "ordinary"}) {
          const Result<std::string> value = Stored(key);
          if (value.ok() && *value != first) wrong = key + " holds " + value->substr(0, 1);
        }
        return !wrong.empty();
      },
      1s);
  EXPECT_EQ(wrong, "");
}

TEST_F(OneSidedFaultsTest, ViewsKeepTheirBytesWhenTheirServerIsExpelledAndComesBack) {
  Begin(2, {"--set", "dram.bytes=64MiB"},
        {"--set", "lease_ms=1000", "--set", "heartbeat_ms=200", "--set", "damping_ms=0"});
  constexpr int kKeys = 60;
  const auto letter = [](int i) { return static_cast<char>('a' + i % 20); };
  const auto name = [](int i) { return "k" + std::to_string(i); };
  for (int i = 0; i < kKeys; ++i) {
    const std::string value(100 * kKiB, letter(i));
    ASSERT_TRUE(client_->Put(name(i), std::string_view(value)).ok());
  }
  std::vector<std::pair<int, ObjectView>> views;
  ASSERT_TRUE(Eventually([&] {
    views.clear();
    for (int i = 0; i < kKeys; ++i) {
      auto view = client_->GetView(name(i));
      if (view.ok() && view->mapped()) views.emplace_back(i, *std::move(view));
    }
    return views.size() == kKeys;
  }));
  cluster_->server(0).Signal(SIGSTOP);
  const Status gone = cluster_->WaitForServers(1, 20s);
  cluster_->server(0).Signal(SIGCONT);
  ASSERT_TRUE(gone.ok()) << gone;
  ASSERT_TRUE(cluster_->WaitForServers(2, 20s).ok());
  for (int i = 0; i < 1500; ++i) {
    const std::string value(100 * kKiB, '#');
    (void)client_->Put("new" + std::to_string(i), std::string_view(value));
  }
  for (const auto& [i, view] : views) {
    const auto wrong = std::ranges::find_if(
        view.bytes(),
        [right = static_cast<std::byte>(letter(i))](std::byte b) { return b != right; });
    ASSERT_EQ(wrong, view.bytes().end()) << "the view of " << name(i) << " reads another object";
  }
}

TEST_F(OneSidedFaultsTest, SevenHundredSegmentsAreMappedInOneSession) {
  Begin(1, {"--set", "dram.bytes=1500MiB", "--set", "dram.segment_bytes=2MiB"});
  constexpr int kKeys = 700;
  const std::string value(1200 * kKiB, 'x');
  std::vector<std::string> keys;
  keys.reserve(kKeys);
  for (int i = 0; i < kKeys; ++i) keys.push_back("k" + std::to_string(i));
  {
    auto other = cluster_->Connect(TransportChoice::kTcp);
    ASSERT_TRUE(other.ok()) << other.status();
    for (const std::string& key : keys) {
      ASSERT_TRUE(Eventually([&] { return (*other)->Put(key, std::string_view(value)).ok(); }));
    }
  }
  std::vector<KeyItem> items;
  items.reserve(keys.size());
  for (const std::string& key : keys) items.push_back({.key = key, .route_key = {}});
  EXPECT_TRUE(Eventually([&] {
    const uint64_t before = client_->stats().one_sided;
    for (const Result<bool>& there : client_->MultiExists(items)) EXPECT_TRUE(there.ok() && *there);
    return client_->stats().one_sided - before == kKeys;
  }));
  const std::string log = cluster_->server(0).ReadLog();
  EXPECT_EQ(log.find("session dismissed"), std::string::npos) << log;
}

}  // namespace
}  // namespace ems::testing
