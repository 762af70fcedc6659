// What must hold under load while servers are killed, stopped and cut off one after the other: no
// Get returns anything older than what was acknowledged before it began, and many of them are hits;
// neither by the client that writes nor by another one, whose view may be older or newer.
#include <gtest/gtest.h>
#include <signal.h>

#include <random>

#include "tests/support/cluster.h"
#include "tests/support/eventually.h"
#include "tests/support/verified_load.h"

namespace ems::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Duration kCallTimeout = milliseconds(500);
constexpr Duration kSlack = milliseconds(500);
constexpr Duration kViewMax = seconds(10);
constexpr double kHitShareMin = 0.3;

enum class Reader { kTheWriter, kAnotherClient };

class StaleReadTest : public ::testing::TestWithParam<Reader> {
 protected:
  void SetUp() override {
    std::printf("seed %u\n", seed_);
    auto started =
        Cluster::Start({.controller_flags = {"--set", "lease_ms=1000", "--set", "heartbeat_ms=100",
                                             "--set", "damping_ms=0", "--set", "settle_ms=10"},
                        .server_flags = {},
                        .proxied = true});
    ASSERT_TRUE(started.ok()) << started.status();
    cluster_ = *std::move(started);
    for (std::unique_ptr<Client>* client : {&writer_, &reader_}) {
      auto connected = cluster_->Connect(TransportChoice::kTcp, kCallTimeout);
      ASSERT_TRUE(connected.ok()) << connected.status();
      *client = *std::move(connected);
    }
    load_ = std::make_unique<VerifiedLoad>(
        writer_.get(), VerifiedLoad::Options{
                           .threads = 4,
                           .keys = 60,
                           .value_bytes_max = 64 * kKiB,
                           .timeout = kCallTimeout,
                           .seed = seed_,
                           .reader = GetParam() == Reader::kTheWriter ? nullptr : reader_.get()});
    ASSERT_TRUE(load_->WaitForCalls(400, seconds(20)));
    CheckSettled("at the start");
  }
  // Of what has happened since the last time, in which the view has not changed.
  void CheckSettled(const std::string& when) {
    const LoadCounts counts = load_->Take();
    EXPECT_TRUE(counts.right()) << when << ": " << counts.ToText();
    EXPECT_LE(counts.slowest, kCallTimeout + kSlack) << when << ": " << counts.ToText();
    EXPECT_GE(counts.hit_share(), kHitShareMin) << when << ": " << counts.ToText();
  }
  // The same while it may have changed. Whether there was any error.
  bool CheckUnsettled(const std::string& when) {
    const LoadCounts counts = load_->Take();
    EXPECT_EQ(counts.wrong_bytes, 0u) << when << ": " << counts.ToText();
    EXPECT_EQ(counts.stale, 0u) << when << ": " << counts.ToText();
    EXPECT_LE(counts.slowest, kCallTimeout + kSlack) << when << ": " << counts.ToText();
    return !counts.errors.empty();
  }
  bool BothHaveOneViewOfThree() {
    const ViewCache::View one = writer_->views().view();
    const ViewCache::View other = reader_->views().view();
    return one->version() == other->version() && one->nodes().size() == 3;
  }
  // All three are in the view of both clients, and a while later there are no more errors.
  void WaitUntilAllServe(const std::string& when) {
    ASSERT_EQ(cluster_->WaitForServers(3, kViewMax), OkStatus()) << when;
    ASSERT_TRUE(Eventually([this] { return BothHaveOneViewOfThree(); }, kViewMax)) << when;
    EXPECT_TRUE(Eventually(
        [&] {
          CheckUnsettled(when);
          return load_->WaitForCalls(200, seconds(5)) && !CheckUnsettled(when);
        },
        kViewMax))
        << when << ": still errors";
    ASSERT_TRUE(load_->WaitForCalls(300, seconds(20)));
    CheckSettled(when);
  }

  const unsigned seed_ = std::random_device()();
  std::mt19937 random_{seed_};
  std::unique_ptr<Cluster> cluster_;
  std::unique_ptr<Client> writer_, reader_;
  std::unique_ptr<VerifiedLoad> load_;
};

TEST_P(StaleReadTest, WhileServersAreKilledAndStartedAgain) {
  for (const bool at_once : {false, true}) {  // at once: another process in the view of before
    const int server = static_cast<int>(random_() % 3);
    cluster_->server(server).Kill();
    if (!at_once) {
      ASSERT_EQ(cluster_->WaitForServers(2, kViewMax), OkStatus());
    }
    ASSERT_TRUE(load_->WaitForCalls(100, seconds(20)));
    ASSERT_EQ(cluster_->RestartServer(server), OkStatus());
    WaitUntilAllServe(at_once ? "killed, back at once" : "killed, back after the view");
  }
}

TEST_P(StaleReadTest, WhileServersSleepAndWakeUp) {
  for (const bool beyond : {false, true}) {  // its lease
    const int server = static_cast<int>(random_() % 3);
    cluster_->server(server).Signal(SIGSTOP);
    if (beyond) {
      ASSERT_EQ(cluster_->WaitForServers(2, kViewMax), OkStatus());
    }
    ASSERT_TRUE(load_->WaitForCalls(200, seconds(20)));
    cluster_->server(server).Signal(SIGCONT);
    WaitUntilAllServe(beyond ? "awake after its lease" : "awake within its lease");
  }
}

TEST_P(StaleReadTest, WhileServersLoseTheControllerOrTheirClients) {
  for (const bool control : {true, false}) {
    const int server = static_cast<int>(random_() % 3);
    if (control) {
      cluster_->control_link(server).Cut();
      ASSERT_EQ(cluster_->WaitForServers(2, kViewMax), OkStatus());
    } else {
      cluster_->data_link(server).Cut();
    }
    ASSERT_TRUE(load_->WaitForCalls(200, seconds(20)));
    (control ? cluster_->control_link(server) : cluster_->data_link(server)).Mend();
    WaitUntilAllServe(control ? "no controller" : "no clients");
  }
}

INSTANTIATE_TEST_SUITE_P(All, StaleReadTest,
                         ::testing::Values(Reader::kTheWriter, Reader::kAnotherClient),
                         [](const auto& test) {
                           return test.param == Reader::kTheWriter ? "OwnGets" : "OthersGets";
                         });

}  // namespace
}  // namespace ems::testing
