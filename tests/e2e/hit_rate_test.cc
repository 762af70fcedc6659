// What must hold: servers know the hit rate of clients that read without them: what a server says
// is what its clients say, also of a client that was killed.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "fabric/net/fd_message.h"
#include "tests/support/cluster.h"
#include "tests/support/eventually.h"
#include "tests/support/raw_connection.h"

namespace ems::testing {
namespace {

constexpr int kReads = 15'000;
constexpr int kKeys = 100;

std::string KeyOf(int i) { return "key-" + std::to_string(i); }

// Every second key is there. Reads until the server is not asked any more, then `reads` times.
void Read(Client* client, int reads) {
  EXPECT_TRUE(Eventually([&] {
    const uint64_t before = client->stats().one_sided;
    for (int i = 0; i < kKeys; ++i) (void)client->Get(KeyOf(i));
    return client->stats().one_sided == before + kKeys;
  }));
  for (int i = 0; i < reads; ++i) (void)client->Get(KeyOf(i % kKeys));
}

// A client in a process of its own, which waits to be killed when it has read. It has to be made
// before this process has threads.
class ReaderProcess final {
 public:
  ReaderProcess() {
    std::array<int, 2> fds{};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds.data()), 0);
    pid_ = fork();
    if (pid_ == 0) ReadAndWait(fds[1]);
    socket_ = fabric::Fd(fds[0]);
    close(fds[1]);
  }
  ~ReaderProcess() { Kill(); }
  ReaderProcess(const ReaderProcess&) = delete;
  ReaderProcess& operator=(const ReaderProcess&) = delete;

  struct Counts {
    uint64_t gets = 0, hits = 0;
  };
  // Has it read; what it says of that.
  Counts Run(const std::string& controller) {
    Counts counts;
    EXPECT_EQ(send(socket_.get(), controller.data(), controller.size(), 0),
              static_cast<ssize_t>(controller.size()));
    EXPECT_EQ(recv(socket_.get(), &counts, sizeof(counts), 0),
              static_cast<ssize_t>(sizeof(counts)));
    return counts;
  }
  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(std::exchange(pid_, 0), nullptr, 0);
  }

 private:
  [[noreturn]] static void ReadAndWait(int socket) {
    std::array<char, 256> address{};
    if (recv(socket, address.data(), address.size() - 1, 0) <= 0) _exit(1);
    ClientOptions options;
    options.controller = address.data();
    auto client = Client::Connect(options);
    if (!client.ok()) _exit(1);
    Read(client->get(), kReads);
    const ClientStats stats = (*client)->stats();
    const Counts counts{.gets = stats.gets, .hits = stats.hits};
    (void)send(socket, &counts, sizeof(counts), 0);
    while (true) pause();
  }

  pid_t pid_ = 0;
  fabric::Fd socket_;
};

struct HitRateTest : ::testing::Test {
  void Begin(std::vector<std::string> server_flags = {}) {
    auto started = Cluster::Start(
        {.servers = 1, .controller_flags = {}, .server_flags = std::move(server_flags)});
    ASSERT_TRUE(started.ok()) << started.status();
    cluster = *std::move(started);
    auto connected = cluster->Connect();
    ASSERT_TRUE(connected.ok()) << connected.status();
    client = *std::move(connected);
    for (int i = 0; i < kKeys; i += 2)
      ASSERT_EQ(client->Put(KeyOf(i), std::string_view("value")), OkStatus());
  }
  nlohmann::json ServerStats() {
    const auto text = client->ServerStats(Cluster::ServerName(0), std::chrono::seconds(5));
    EXPECT_TRUE(text.ok()) << text.status();
    return nlohmann::json::parse(text.value_or("{}"), nullptr, false);
  }
  // The sum of those rows of /metrics whose names and labels have all of `parts`.
  double Metric(const std::vector<std::string>& parts) {
    const auto page = HttpGet(cluster->server(0).ready().http_address, "/metrics");
    EXPECT_TRUE(page.ok()) << page.status();
    std::istringstream lines(page.value_or(""));
    double sum = 0;
    for (std::string line; std::getline(lines, line);) {
      const auto has = [&](const std::string& part) { return line.find(part) != line.npos; };
      if (line.starts_with("ems_") && std::ranges::all_of(parts, has))
        sum += std::atof(line.c_str() + line.rfind(' '));
    }
    return sum;
  }

  std::unique_ptr<Cluster> cluster;
  std::unique_ptr<Client> client;
};

TEST_F(HitRateTest, TheServerCountsWhatAKilledClientHasRead) {
  ReaderProcess reader;
  Begin();
  const ReaderProcess::Counts said = reader.Run(cluster->controller_address());
  reader.Kill();
  EXPECT_GE(said.gets, uint64_t{kReads});
  EXPECT_TRUE(Eventually([&] { return ServerStats()["gets"] == said.gets; }))
      << ServerStats()["gets"] << ", and the client has read " << said.gets;
  EXPECT_EQ(ServerStats()["hits"], said.hits);
}

TEST_F(HitRateTest, StatusMetricsAndClientsAgree) {
  Begin();
  Read(client.get(), kReads);
  const ClientStats said = client->stats();
  EXPECT_GE(said.one_sided, uint64_t{kReads});
  EXPECT_TRUE(Eventually([&] { return ServerStats()["gets"] == said.gets; }))
      << ServerStats()["gets"] << ", and the client has read " << said.gets;
  const nlohmann::json stats = ServerStats();
  EXPECT_EQ(stats["hits"], said.hits);
  EXPECT_EQ(stats["one_sided_gets"], said.one_sided);
  EXPECT_EQ(stats["namespaces"][0]["hits"], said.hits);
  const std::vector<std::string> gets{"ems_server_lookups_total{namespace=\"default\",op=\"get\""};
  std::vector<std::string> hits = gets;
  hits.emplace_back("result=\"hit\"");
  EXPECT_EQ(Metric(gets), static_cast<double>(said.gets));
  EXPECT_EQ(Metric(hits), static_cast<double>(said.hits));
  EXPECT_EQ(Metric({"ems_server_lookup_bytes_total{"}), static_cast<double>(said.bytes_read));
  EXPECT_NEAR(100 * Metric(hits) / Metric(gets), 50, 1);
}

TEST_F(HitRateTest, ServersAndClientsSayWhatCallsTook) {
  Begin({"--set", "shm.share=off"});
  for (int i = 0; i < kKeys; ++i) (void)client->Get(KeyOf(i));
  const auto requests = [&](const std::string& labels) {
    return Metric({"ems_server_request_seconds_count{", labels});
  };
  EXPECT_EQ(requests(R"(op="put",tier="dram",transport="unix")"), kKeys / 2);
  EXPECT_EQ(requests(R"(op="get",tier="dram",transport="unix")"), kKeys / 2);
  EXPECT_EQ(requests(R"(op="get",tier="none",transport="unix")"), kKeys / 2);
  EXPECT_GT(Metric({"ems_server_request_seconds_sum{"}), 0);
  double timed = 0;
  for (const CallLatency& call : client->stats().calls)
    if (call.path == "socket") timed += static_cast<double>(call.latencies.count);
  EXPECT_EQ(timed, kKeys + kKeys / 2);
}

TEST_F(HitRateTest, AReadThatTakesTheSocketAfterAllCountsOnce) {
  Begin({"--set", "shm.share=off"});
  for (int i = 0; i < kKeys; ++i) (void)client->Get(KeyOf(i));
  EXPECT_EQ(client->stats().one_sided, 0u);
  EXPECT_EQ(ServerStats()["gets"], kKeys);
  EXPECT_EQ(ServerStats()["hits"], kKeys / 2);
  EXPECT_EQ(ServerStats()["one_sided_gets"], 0);
}

}  // namespace
}  // namespace ems::testing
