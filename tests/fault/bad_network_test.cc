// What must hold while the network is bad: slow, clogged, of a smaller packet size than believed,
// or damaging what it carries. Every call ends within its deadline, other servers are served as
// ever, no byte is wrong, and all is well again soon after the network is.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "cluster/slot_table.h"
#include "common/thread_pool.h"
#include "tests/support/cluster.h"
#include "tests/support/eventually.h"
#include "tests/support/self_verifying.h"
#include "tests/support/verified_load.h"

namespace ems::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Duration kSlack = milliseconds(500);
constexpr int kServers = 3;

class BadNetworkTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::printf("seed %u\n", seed_);
    auto started =
        Cluster::Start({.servers = kServers,
                        .controller_flags = {"--set", "damping_ms=0", "--set", "settle_ms=10"},
                        .server_flags = {},
                        .proxied = true});
    ASSERT_TRUE(started.ok()) << started.status();
    cluster_ = *std::move(started);
    auto client = cluster_->Connect(TransportChoice::kTcp, seconds(5));
    ASSERT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
  }
  // `count` keys of server 0, or of others, each with a value of Put 1.
  std::vector<std::string> Stored(bool of_server_0, size_t count, size_t bytes) {
    std::vector<std::string> keys;
    const ViewCache::View view = client_->views().view();
    for (int i = 0; keys.size() < count; ++i) {
      const std::string key = "key-" + std::to_string(i);
      const NodeId owner = view->OwnerId(SlotOf(client_->name_space().ref.id, key));
      if ((view->Find(owner)->name == Cluster::ServerName(0)) != of_server_0) continue;
      keys.push_back(key);
      MustPut(key, 1, bytes);
    }
    return keys;
  }
  Status Put(const std::string& key, uint64_t put_id, size_t bytes, Duration timeout) {
    return client_->Put(key, std::string_view(MakeValue("default", key, put_id, bytes)),
                        {.overwrite = true, .timeout = timeout});
  }
  // On a busy machine a connection can take longer than the client waits for one.
  void MustPut(const std::string& key, uint64_t put_id, size_t bytes) {
    EXPECT_TRUE(Eventually([&] { return Put(key, put_id, bytes, seconds(1)).ok(); })) << key;
  }
  // Reads it, and says how long that took. A hit must be a whole value.
  Result<Duration> Get(const std::string& key, Duration timeout) {
    const TimePoint start = Clock::System().Now();
    const Result<std::string> value = client_->Get(key, {.timeout = timeout});
    const Duration took = Clock::System().Now() - start;
    EXPECT_LE(took, timeout + kSlack) << value.status();
    if (!value.ok()) return value.status();
    EXPECT_TRUE(VerifyValue("default", key, *value)) << key;
    return took;
  }
  TcpProxy& link() { return cluster_->data_link(0); }
  // Puts that server 0 has refused because nobody waited for them any more.
  double LateAnswers() {
    const auto page = HttpGet(cluster_->server(0).ready().http_address, "/metrics");
    const std::string row = "ems_server_answers_total{op=\"Put\",status=\"deadline\"} ";
    const size_t at = page.ok() ? page->find(row) : std::string::npos;
    return at == std::string::npos ? 0 : std::stod(page->substr(at + row.size()));
  }

  const unsigned seed_ = std::random_device()();
  std::mt19937 random_{seed_};
  std::unique_ptr<Cluster> cluster_;
  std::unique_ptr<Client> client_;
};

TEST_F(BadNetworkTest, ASlowServerIsSlowForItsOwnKeysAlone) {
  const std::vector<std::string> slow = Stored(true, 8, 1000);
  const std::vector<std::string> fast = Stored(false, 8, 1000);
  // All at once, each on a connection of its own.
  const auto read_slow = [&](Duration delay) {
    std::vector<Thread> threads;
    threads.reserve(slow.size());
    for (const std::string& key : slow) {
      threads.emplace_back("slow", [this, &key, delay] {
        const Result<Duration> took = Get(key, seconds(10));
        ASSERT_TRUE(took.ok()) << took.status();
        EXPECT_GE(*took, delay) << "it was not slow";
      });
    }
    return threads;
  };
  link().Set(Way::kToTarget, {.delay = milliseconds(50)});
  read_slow(milliseconds(50)).clear();  // connections are there from now on
  link().Set(Way::kToTarget, {.delay = seconds(1)});
  {
    const std::vector<Thread> threads = read_slow(seconds(1));
    for (const std::string& key : fast) {
      const Result<Duration> took = Get(key, seconds(5));
      ASSERT_TRUE(took.ok()) << took.status();
      EXPECT_LT(*took, kSlack);
    }
  }
  EXPECT_EQ(client_->stats().breaker_opened, 0u) << "slow answers are answers";
  link().Mend();
  const Result<Duration> took = Get(slow.front(), seconds(5));
  ASSERT_TRUE(took.ok()) << took.status();
  EXPECT_LT(*took, kSlack);
}

TEST_F(BadNetworkTest, WhereLargePacketsAreLostCallsEndAndTheBreakerKeepsThemCheap) {
  constexpr Duration kTimeout = milliseconds(300);
  const std::vector<std::string> lost = Stored(true, 6, 200 * kKiB);
  const std::vector<std::string> whole = Stored(false, 1, 200 * kKiB);
  link().Set(Way::kToClient, {.carry = Carry::kLoseLarge});
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(Get(lost[static_cast<size_t>(i)], kTimeout).status().code(),
              StatusCode::kDeadlineExceeded);
  }
  const TimePoint start = Clock::System().Now();
  EXPECT_EQ(Get(lost[5], seconds(5)).status().code(), StatusCode::kUnavailable);
  EXPECT_LT(Clock::System().Now() - start, kSlack) << "the breaker is not open";
  EXPECT_TRUE(Get(whole.front(), seconds(5)).ok()) << "another server's";
  link().Mend();
  for (const std::string& key : lost)
    EXPECT_TRUE(Eventually([&] { return Get(key, kTimeout).ok(); })) << key;
}

TEST_F(BadNetworkTest, AConnectionResetAtAnyByteOfAPutOrGetIsTriedAgain) {
  const std::string key = Stored(true, 1, 3000).front();
  // Of a request and of an answer: in the header, the key, the value, its checksum.
  for (const Way way : {Way::kToTarget, Way::kToClient}) {
    for (const uint64_t at : {0U, 1U, 63U, 64U, 66U, 100U, 3000U}) {
      link().Set(way, {.reset_at = at});
      const uint64_t strikes = link().strikes();
      const uint64_t put_id = 100 + at;
      // An answer that has begun is not asked for again, a Put that may have arrived is not sent
      // again.
      const Status put = Put(key, put_id, 3000, seconds(2));
      if (!put.ok()) {
        EXPECT_EQ(put.code(), StatusCode::kAborted) << put;
      }
      const Result<Duration> got = Get(key, seconds(2));
      if (!got.ok()) {
        EXPECT_EQ(got.status().code(), StatusCode::kUnavailable) << got.status();
      }
      EXPECT_EQ(link().strikes(), strikes + 1) << "at " << at;
      link().Mend();
      MustPut(key, put_id + 1, 3000);
      const Result<std::string> value = client_->Get(key);
      ASSERT_TRUE(value.ok()) << value.status();
      EXPECT_EQ(VerifyValue("default", key, *value), put_id + 1) << "at " << at;
    }
  }
}

TEST_F(BadNetworkTest, AFlippedBitIsNeverAValue) {
  const std::string key = Stored(true, 1, 3000).front();
  for (const Way way : {Way::kToTarget, Way::kToClient}) {
    for (const uint64_t at : {0U, 5U, 20U, 40U, 63U, 64U, 66U, 100U, 3000U}) {
      link().Set(way, {.flip_at = at});
      const uint64_t strikes = link().strikes();
      (void)Put(key, 100 + at, 3000, milliseconds(300));
      (void)Get(key, milliseconds(300));
      EXPECT_EQ(link().strikes(), strikes + 1) << "at " << at;
      link().Mend();
      EXPECT_TRUE(Eventually([&] { return Get(key, seconds(1)).ok(); })) << "at " << at;
    }
  }
}

TEST_F(BadNetworkTest, AnAnswerThatDripsCostsTheDeadline) {
  const std::string key = Stored(true, 1, 64 * kKiB).front();
  link().Set(Way::kToClient, {.drip = milliseconds(5)});
  EXPECT_EQ(Get(key, milliseconds(500)).status().code(), StatusCode::kDeadlineExceeded);
  link().Mend();
  EXPECT_TRUE(Eventually([&] { return Get(key, seconds(1)).ok(); }));
}

TEST_F(BadNetworkTest, APutThatArrivesAfterItsTimeUndoesNothingNewer) {
  const std::string key = Stored(true, 1, 3000).front();
  auto beside = cluster_->Connect(TransportChoice::kUnix, seconds(1));  // past the link
  ASSERT_TRUE(beside.ok()) << beside.status();
  link().Set(Way::kToTarget, {.carry = Carry::kStall});
  EXPECT_EQ(Put(key, 2, 4000, milliseconds(300)).code(), StatusCode::kDeadlineExceeded);
  const std::string newer = MakeValue("default", key, 3, 5000);
  ASSERT_EQ((*beside)->Put(key, std::string_view(newer), {.overwrite = true}), OkStatus());
  link().Mend();
  ASSERT_TRUE(Eventually([&] { return Get(key, seconds(1)).ok(); }));
  // Put 3 was acknowledged when nobody waited for Put 2 any more. What the link held back has
  // arrived when the server says so.
  ASSERT_TRUE(Eventually([&] { return LateAnswers() > 0; }));
  const Result<std::string> value = (*beside)->Get(key);
  ASSERT_TRUE(value.ok()) << value.status();
  EXPECT_EQ(VerifyValue("default", key, *value), 3U);
}

// Links clog one after the other, in both directions and to the controller, too, and become free in
// another order.
TEST_F(BadNetworkTest, LinksThatClogOneAfterTheOther) {
  constexpr Duration kTimeout = milliseconds(500);
  VerifiedLoad load(
      client_.get(),
      {.threads = 4, .keys = 60, .value_bytes_max = 64 * kKiB, .timeout = kTimeout, .seed = seed_});
  ASSERT_TRUE(load.WaitForCalls(400, seconds(20)));
  LoadCounts counts = load.Take();
  EXPECT_TRUE(counts.right()) << counts.ToText();
  std::vector<TcpProxy*> links;
  for (int i = 0; i < kServers; ++i) {
    links.push_back(&cluster_->data_link(i));
    links.push_back(&cluster_->control_link(i));
  }
  std::shuffle(links.begin(), links.end(), random_);
  for (TcpProxy* one : links) {
    for (const Way way : {Way::kToTarget, Way::kToClient}) one->Set(way, {.carry = Carry::kStall});
    ASSERT_TRUE(load.WaitForCalls(8, seconds(10)));
  }
  std::shuffle(links.begin(), links.end(), random_);
  for (TcpProxy* one : links) {
    one->Mend();
    ASSERT_TRUE(load.WaitForCalls(8, seconds(10)));
  }
  ASSERT_EQ(cluster_->WaitForServers(kServers, seconds(15)), OkStatus());
  EXPECT_TRUE(Eventually(
      [&] {
        counts = load.Take();
        EXPECT_TRUE(counts.right()) << counts.ToText();
        EXPECT_LE(counts.slowest, kTimeout + kSlack) << counts.ToText();
        if (!load.WaitForCalls(200, seconds(5))) return false;
        counts = load.Take();
        EXPECT_TRUE(counts.right()) << counts.ToText();
        return counts.errors.empty();
      },
      seconds(10)));
  ASSERT_TRUE(load.WaitForCalls(200, seconds(10)));
  load.Stop();
  EXPECT_GT(load.Take().hit_share(), 0.2);
}

}  // namespace
}  // namespace ems::testing
