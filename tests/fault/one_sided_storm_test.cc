// What must hold while every chunk of a small pool is recycled again and again under clients that
// read it without the server: no wrong byte and no fault, whether readers run, stand still or are
// killed; and when they are gone nothing is left of them.
//
// EMS_STORM_SECONDS (10 by default) is how long each storm blows; for more than 90 run the binary
// itself, without ctest's time limit.
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "common/thread_pool.h"
#include "tests/support/cluster.h"

namespace ems::testing {
namespace {

using std::chrono::seconds;

constexpr uint64_t kPoolBytes = 48 * kMiB;
constexpr uint64_t kValueBytesMax = 256 * kKiB;
// Ten times as much as the pool holds, at half of kValueBytesMax on average.
constexpr uint64_t kKeys = 10 * kPoolBytes / (kValueBytesMax / 2);

int StormSeconds() {
  const char* wanted = std::getenv("EMS_STORM_SECONDS");  // NOLINT(concurrency-mt-unsafe)
  return wanted != nullptr ? std::max(1, std::atoi(wanted)) : 10;
}

void Pause(Duration time) {
  StopFlag never;
  never.WaitFor(time);
}

// What of a server process must come back to where it was.
struct Footprint {
  int64_t descriptors = 0;
  int64_t mappings = 0;
};

Footprint FootprintOf(pid_t pid) {
  const std::string proc = "/proc/" + std::to_string(pid);
  Footprint found;
  for ([[maybe_unused]] const auto& fd : std::filesystem::directory_iterator(proc + "/fd"))
    ++found.descriptors;
  std::ifstream maps(proc + "/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:") != std::string::npos) ++found.mappings;
  }
  return found;
}

class OneSidedStormTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto started = Cluster::Start(
        {.servers = 1,
         .controller_flags = {},
         .server_flags = {"--set", fmt::format("dram.bytes={}", kPoolBytes), "--set",
                          "dram.segment_bytes=4MiB", "--set", "dram.huge_pages=off"}});
    ASSERT_TRUE(started.ok()) << started.status();
    cluster_ = *std::move(started);
  }
  Daemon Spawn(int readers, int writers) {
    const std::string name = "client-" + std::to_string(next_++);
    auto started = Daemon::Start({.program = "../tests/bin/one_sided_reader",
                                  .folder = cluster_->folder(),
                                  .name = name,
                                  .flags = {cluster_->controller_address(), std::to_string(next_),
                                            std::to_string(kKeys), std::to_string(kValueBytesMax),
                                            std::to_string(readers), std::to_string(writers)},
                                  .fd_limit = {}});
    EXPECT_TRUE(started.ok()) << started.status();
    return *std::move(started);
  }
  // Ends a client and returns what it has counted.
  static nlohmann::json Finish(Daemon* client) {
    client->Signal(SIGTERM);
    const Result<int> code = client->WaitExit(seconds(20));
    EXPECT_TRUE(code.ok()) << code.status();
    EXPECT_EQ(code.value_or(-1), 0) << client->ReadLog();
    const std::string log = client->ReadLog();
    const size_t at = log.rfind("{\"checksum_mismatches\"");
    if (at == std::string::npos) {
      ADD_FAILURE() << "no counts:\n" << log;
      return nlohmann::json::parse(
          R"({"wrong":1,"errors":1,"hits":0,"views":0,"mapped":0,"one_sided":0})");
    }
    const nlohmann::json counts = nlohmann::json::parse(log.substr(at));
    std::printf("%s %s\n", client->options().name.c_str(), counts.dump().c_str());
    EXPECT_EQ(counts["wrong"], 0);
    EXPECT_EQ(counts["checksum_mismatches"], 0);
    return counts;
  }
  nlohmann::json Stats() {
    auto client = cluster_->Connect(TransportChoice::kTcp);
    EXPECT_TRUE(client.ok()) << client.status();
    const auto text = (*client)->ServerStats(Cluster::ServerName(0), seconds(5));
    EXPECT_TRUE(text.ok()) << text.status();
    return text.ok() ? nlohmann::json::parse(*text) : nlohmann::json();
  }
  // Of the values that a client finds, key by key.
  uint64_t BytesOfAllKeys() {
    auto client = cluster_->Connect(TransportChoice::kTcp);
    EXPECT_TRUE(client.ok()) << client.status();
    uint64_t bytes = 0;
    for (uint64_t number = 0; client.ok() && number < kKeys; ++number) {
      const auto found = (*client)->Stat("object-" + std::to_string(number));
      if (found.ok()) bytes += *found;
    }
    return bytes;
  }
  // The server as it is when nobody is attached and all is quiet; waits until it is.
  nlohmann::json QuietStats() {
    nlohmann::json stats;
    const Deadline deadline = Deadline::After(seconds(10));
    do {
      Pause(std::chrono::milliseconds(100));
      stats = Stats();
    } while ((stats["shm_sessions"] != 0 || stats["namespaces"][0]["retired_bytes"] != 0) &&
             !deadline.Passed());
    return stats;
  }
  void ExpectNothingIsLeft(const Footprint& before) {
    const nlohmann::json stats = QuietStats();
    const nlohmann::json& ns = stats["namespaces"][0];
    EXPECT_EQ(stats["shm_sessions"], 0);
    EXPECT_EQ(ns["retired_bytes"], 0);
    EXPECT_EQ(ns["pinned_objects"], 0);
    EXPECT_EQ(ns["value_bytes"], ns["linked_bytes"]) << "bytes are charged that no key leads to";
    EXPECT_EQ(ns["value_bytes"], BytesOfAllKeys());
    const Footprint after = FootprintOf(cluster_->server(0).pid());
    EXPECT_LE(after.descriptors, before.descriptors);
    EXPECT_LE(after.mappings, before.mappings);
  }
  // What the server is like after the first clients have come and gone: with its shared index.
  Footprint Baseline() {
    Daemon first = Spawn(1, 2);
    Pause(seconds(2));
    Finish(&first);
    (void)QuietStats();
    return FootprintOf(cluster_->server(0).pid());
  }

  std::unique_ptr<Cluster> cluster_;
  int next_ = 0;
};

TEST_F(OneSidedStormTest, EveryByteIsRightWhileEveryChunkIsRecycled) {
  const Footprint before = Baseline();
  Daemon writer = Spawn(0, 2);
  Daemon first = Spawn(2, 0);
  Daemon second = Spawn(2, 0);
  Pause(seconds(StormSeconds()));
  uint64_t hits = 0, one_sided = 0, mapped = 0, views = 0;
  for (Daemon* reader : {&first, &second}) {
    const nlohmann::json counts = Finish(reader);
    EXPECT_EQ(counts["errors"], 0) << counts;
    hits += counts["hits"].get<uint64_t>();
    views += counts["views"].get<uint64_t>();
    mapped += counts["mapped"].get<uint64_t>();
    one_sided += counts["one_sided"].get<uint64_t>();
  }
  const nlohmann::json writes = Finish(&writer);
  EXPECT_EQ(writes["errors"], 0) << writes;
  EXPECT_GT(hits, 100u);
  EXPECT_GT(mapped * 10, views * 9) << "views were copies: nothing was tested";
  EXPECT_GT(one_sided, hits / 2);
  const nlohmann::json stats = Stats();
  const double recycled =
      stats["namespaces"][0]["evicted_bytes"].get<double>() / static_cast<double>(kPoolBytes);
  std::printf("the pool was recycled %.0f times\n", recycled);
  EXPECT_GT(recycled, std::max(3, StormSeconds() / 3));
  ExpectNothingIsLeft(before);
}

TEST_F(OneSidedStormTest, ReadersThatStandStillOrAreKilledHarmNobody) {
  const Footprint before = Baseline();
  Daemon writer = Spawn(0, 2);
  Daemon steady = Spawn(1, 0);
  Daemon frozen = Spawn(2, 0);
  Pause(seconds(1));
  // Stopped for 30 s, running for 3 s, and again.
  constexpr int kStopped = 30, kCycle = 33;
  for (int second = 0; second < StormSeconds(); ++second) {
    if (second % kCycle == 0) frozen.Signal(SIGSTOP);
    if (second % kCycle == kStopped) frozen.Signal(SIGCONT);
    Daemon doomed = Spawn(2, 0);
    Pause(seconds(1));
    ASSERT_FALSE(doomed.WaitExit(Duration(0)).ok()) << "ended by itself: " << doomed.ReadLog();
    doomed.Kill();
    ASSERT_EQ(doomed.ReadLog().find("WRONG"), std::string::npos) << doomed.ReadLog();
  }
  frozen.Signal(SIGCONT);
  Pause(seconds(2));
  for (Daemon* client : {&frozen, &steady, &writer}) {
    const nlohmann::json counts = Finish(client);
    EXPECT_EQ(counts["errors"], 0) << counts;
  }
  ExpectNothingIsLeft(before);
}

}  // namespace
}  // namespace ems::testing
