// What must hold: tokens and logits stay those of the engine alone when servers of the pool are
// killed while loads from them are under way, and when they come back with what lies on their SSDs.
#include <gtest/gtest.h>
#include <signal.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <span>

#include "tests/e2e/serving_round.h"
#include "tests/support/cluster.h"
#include "tests/support/eventually.h"

namespace ems::pdc::test {
namespace {

using ::ems::testing::Cluster;
using ::ems::testing::Daemon;
using ::ems::testing::Eventually;
using std::chrono::seconds;

std::vector<Turn> TurnsOf(const std::vector<Conversation>& conversations) {
  std::vector<Turn> turns;
  for (const Conversation& one : conversations) turns.insert(turns.end(), one.begin(), one.end());
  return turns;
}

// Bytes that a process which listens on `address`, "127.0.0.1:port", has received and not read.
uint64_t UnreadBytes(const std::string& address) {
  const auto wanted = static_cast<uint32_t>(std::stoul(address.substr(address.rfind(':') + 1)));
  std::ifstream connections("/proc/net/tcp");
  uint64_t unread = 0;
  for (std::string line; std::getline(connections, line);) {
    uint32_t port = 0, state = 0, queue = 0;
    const bool read = std::sscanf(line.c_str(), " %*d: %*8x:%4x %*8x:%*4x %2x %*8x:%8x", &port,
                                  &state, &queue) == 3;
    if (read && port == wanted && state == 1) unread += queue;  // 1: established
  }
  return unread;
}

class ServingRecoveryTest : public ::testing::Test {
 protected:
  void Start(int servers, const std::vector<std::string>& controller_flags,
             const std::vector<std::string>& server_flags = {}) {
    auto started = Cluster::Start(
        {.servers = servers, .controller_flags = controller_flags, .server_flags = server_flags});
    ASSERT_TRUE(started.ok()) << started.status();
    cluster_ = *std::move(started);
  }
  RigOptions On(const std::string& plane) const {
    return {.controller = cluster_->controller_address(), .plane = plane};
  }
  std::vector<nlohmann::json> ServerStats() const {
    std::vector<nlohmann::json> all;
    const auto client = cluster_->Connect();
    for (int i = 0; i < cluster_->server_count(); ++i) {
      const auto text = (*client)->ServerStats(Cluster::ServerName(i), seconds(10));
      EXPECT_TRUE(text.ok()) << text.status();
      all.push_back(nlohmann::json::parse(text.value_or("{}")));
    }
    return all;
  }
  uint64_t SsdHits() const {
    uint64_t hits = 0;
    for (const auto& one : ServerStats()) hits += one.value("ssd_hits", uint64_t{0});
    return hits;
  }
  // False: not all that the servers took is on their SSDs in time.
  bool WaitUntilWritten() const {
    const auto is_clean = [](const nlohmann::json& one) {
      return one["ssd"]["dirty_bytes"] == 0 && one["ssd"]["written_objects"] > 0;
    };
    return Eventually([&] { return std::ranges::all_of(ServerStats(), is_clean); }, seconds(30));
  }
  // A new client reaches all servers where the view says that they are now: it may be the old one
  // for a moment after a restart. False: not in time.
  bool WaitUntilAnswering() const {
    std::vector<std::string> names(64);
    std::vector<KeyItem> keys;
    for (size_t i = 0; i < names.size(); ++i) {
      names[i] = "probe-" + std::to_string(i);
      keys.push_back({names[i]});
    }
    const auto all_answer = [&] {
      const auto client = cluster_->Connect(TransportChoice::kTcp);
      if (!client.ok()) return false;
      const auto found = (*client)->MultiExists(keys);
      return std::ranges::all_of(found, [](const auto& one) { return one.ok(); });
    };
    return Eventually(all_answer, seconds(30));
  }
  // Kills a server while loads from it wait for their bytes.
  void KillWithLoadsUnderWay(const std::string& plane,
                             const std::vector<std::unique_ptr<ServingRig>>& rigs, int victim) {
    // Prompts have been looked up, and their blocks are about to be read, by all loaders.
    for (const auto& rig : rigs) ASSERT_TRUE(rig->spied().WaitForHeld(8, seconds(30)));
    Daemon& server = cluster_->server(victim);
    if (plane == "ub") {
      // Nobody asks the server: what is read is memory of a process that is no more.
      server.Kill();
      for (const auto& rig : rigs) rig->spied().Release();
      return;
    }
    server.Signal(SIGSTOP);
    for (const auto& rig : rigs) rig->spied().Release();
    EXPECT_TRUE(Eventually([&] { return UnreadBytes(server.ready().address) > 0; }));
    EXPECT_GT(rigs[0]->spied().reads_under_way() + rigs[1]->spied().reads_under_way(), 0U);
    server.Kill();
  }
  void KillAndComeBack(const std::string& plane, int victim);

  class Rigs;
  std::unique_ptr<Cluster> cluster_;
};

TEST_F(ServingRecoveryTest, AfterARestartAllComesFromTheSsd) {
  // No server is dropped while it starts again; each may come back in a view of its own.
  Start(2, {"--set", "damping_ms=0", "--set", "lease_ms=60000", "--set", "settle_ms=0"},
        {"--set", "ssd.capacity_bytes=512MiB", "--set", "dram.bytes=64MiB"});
  const char* const planes[] = {"ub", "vpc"};
  for (const std::string plane : planes) {
    uint64_t blocks = 0;
    std::vector<KnownBlocks> known(AllAsked().size());
    for (size_t i = 0; i < known.size(); ++i) {
      const Asked& asked = *AllAsked()[i];
      const auto conversations = Apart(asked.conversations, plane);
      SCOPED_TRACE("before the restart, " + plane);
      Serve(asked.engine.model(), On(plane), conversations, Sharing::kNone, &known[i]);
      KnownBlocks needed;
      for (const Turn& turn : TurnsOf(conversations))
        needed.Add(turn.salt, std::span(turn.prompt).first(turn.loadable_tokens()));
      blocks += needed.size();
    }
    ASSERT_TRUE(WaitUntilWritten());
    for (int i = 0; i < 2; ++i) cluster_->server(i).Kill();
    for (int i = 0; i < 2; ++i) ASSERT_EQ(cluster_->RespawnServer(i), OkStatus());
    for (int i = 0; i < 2; ++i) ASSERT_EQ(cluster_->server(i).WaitReady(seconds(20)), OkStatus());
    ASSERT_EQ(cluster_->WaitForServers(2, seconds(20)), OkStatus());
    ASSERT_TRUE(WaitUntilAnswering());
    ASSERT_EQ(SsdHits(), 0U);
    for (size_t i = 0; i < known.size(); ++i) {
      const Asked& asked = *AllAsked()[i];
      SCOPED_TRACE("after the restart, " + plane);
      const Served served = Serve(asked.engine.model(), On(plane),
                                  Apart(asked.conversations, plane), Sharing::kNone, &known[i]);
      EXPECT_EQ(served.looked_tokens, served.loadable_tokens);
      EXPECT_EQ(served.cached_tokens, served.loadable_tokens);
    }
    EXPECT_GE(SsdHits(), blocks) << "each block at least once: the servers' DRAM was empty";
  }
}

// A rig for each model over a plane, with what it is asked.
class ServingRecoveryTest::Rigs final {
 public:
  explicit Rigs(const RigOptions& options) {
    for (const auto& asked : AllAsked()) {
      turns_.push_back(TurnsOf(Apart(asked->conversations, options.plane)));
      rigs_.push_back(std::make_unique<ServingRig>(asked->engine.model(), options));
    }
  }
  void SubmitAll() {
    for (size_t i = 0; i < rigs_.size(); ++i) {
      for (const Turn& turn : turns_[i]) rigs_[i]->Submit(turn);
    }
  }
  // All answers are right. How many tokens came from the pool.
  uint64_t CollectAll() {
    uint64_t cached = 0;
    for (size_t i = 0; i < rigs_.size(); ++i) {
      const auto told = rigs_[i]->Collect();
      EXPECT_EQ(told.size(), turns_[i].size());
      for (size_t j = 0; j < told.size(); ++j) {
        ExpectAnswer(told[j], turns_[i][j]);
        cached += told[j].cached_tokens;
      }
    }
    return cached;
  }
  uint64_t AnswerAll() {
    SubmitAll();
    return CollectAll();
  }
  // All logits are right. How many tokens came from the pool.
  uint64_t LookAtLogits() {
    uint64_t cached = 0;
    for (size_t i = 0; i < rigs_.size(); ++i) {
      for (const Turn& turn : turns_[i]) {
        const LoadedLogits loaded = rigs_[i]->Logits(turn);
        ExpectLogits(loaded, turn);
        cached += loaded.hit.cached_tokens;
      }
    }
    return cached;
  }
  uint64_t loadable_tokens() const {
    uint64_t sum = 0;
    for (const auto& turns : turns_) {
      for (const Turn& turn : turns) sum += turn.loadable_tokens();
    }
    return sum;
  }
  const std::vector<std::unique_ptr<ServingRig>>& all() const { return rigs_; }

 private:
  std::vector<std::vector<Turn>> turns_;  // by rig
  std::vector<std::unique_ptr<ServingRig>> rigs_;
};

void ServingRecoveryTest::KillAndComeBack(const std::string& plane, int victim) {
  Rigs(On(plane)).AnswerAll();  // and saved
  {
    Rigs rigs(On(plane));
    for (const auto& rig : rigs.all()) rig->spied().Hold();
    rigs.SubmitAll();
    KillWithLoadsUnderWay(plane, rigs.all(), victim);
    const uint64_t cached = rigs.CollectAll();
    EXPECT_GT(cached, 0U) << "of the servers that are left";
    EXPECT_LT(cached, rigs.loadable_tokens());
    for (const auto& rig : rigs.all()) {
      const ::ems::testing::SpiedReads reads = rig->spied().seen();
      EXPECT_GT(reads.hits, 0U);
      if (plane == "vpc") {
        EXPECT_GT(reads.failures + reads.misses, 0U) << "of blocks that were there a moment before";
      }
    }
    rigs.LookAtLogits();
  }
  ASSERT_EQ(cluster_->WaitForServers(2, seconds(20)), OkStatus());
  ASSERT_EQ(cluster_->RestartServer(victim), OkStatus());
  ASSERT_EQ(cluster_->WaitForServers(3, seconds(20)), OkStatus());
  Rigs rigs(On(plane));
  EXPECT_GT(rigs.AnswerAll(), 0U);
  EXPECT_GT(rigs.LookAtLogits(), 0U);
}

TEST_F(ServingRecoveryTest, AServerKilledWhileLoadsFromItAreUnderWay) {
  Start(3, {"--set", "damping_ms=0", "--set", "lease_ms=2000"});
  KillAndComeBack("vpc", 0);
  KillAndComeBack("ub", 1);
}

}  // namespace
}  // namespace ems::pdc::test
