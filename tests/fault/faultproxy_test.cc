// What must hold: ems-faultproxy damages what clients and a server say to each other, as it is
// told to, and neither shows a wrong byte; and it knows nothing of what it carries.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <random>
#include <string>
#include <vector>

#include "tests/support/cluster.h"
#include "tests/support/daemon.h"
#include "tests/support/eventually.h"
#include "tests/support/raw_connection.h"
#include "tests/support/verified_load.h"

namespace ems::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::string_view kProgram = "ems-faultproxy";

class FaultProxyTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::printf("seed %u\n", seed_);
    auto started = Cluster::Start({.servers = 1,
                                   .controller_flags = {"--set", "settle_ms=10"},
                                   .server_flags = {},
                                   .proxied = true});
    ASSERT_TRUE(started.ok()) << started.status();
    cluster_ = *std::move(started);
  }
  // In front of `target`.
  Daemon StartProxy(const std::string& target, std::vector<std::string> flags = {}) {
    flags.insert(flags.end(), {"--target", target, "--seed", std::to_string(seed_)});
    Result<Daemon> proxy = Daemon::Start({.program = std::string(kProgram),
                                          .folder = cluster_->folder(),
                                          .name = "proxy-" + std::to_string(++proxies_),
                                          .flags = std::move(flags),
                                          .fd_limit = {}});
    EXPECT_TRUE(proxy.ok()) << proxy.status();
    EXPECT_TRUE(proxy->WaitReady(seconds(20)).ok());
    return *std::move(proxy);
  }
  // What it says at its end.
  static std::string Stopped(Daemon* proxy, int signal = SIGTERM) {
    proxy->Signal(signal);
    const Result<int> code = proxy->WaitExit(seconds(20));
    EXPECT_TRUE(code.ok() && *code == 0) << code.status();
    return proxy->ReadLog();
  }

  const unsigned seed_ = std::random_device()();
  std::unique_ptr<Cluster> cluster_;
  int proxies_ = 0;
};

TEST_F(FaultProxyTest, ThroughDamageAClientReadsNoWrongByte) {
  Daemon proxy = StartProxy(cluster_->server(0).ready().address,
                            {"--flip", "0.05", "--drop", "0.005", "--duplicate", "0.01",
                             "--reorder", "0.02", "--reset", "0.01", "--delay-ms", "1"});
  cluster_->data_link(0).SetTarget(proxy.ready().address);
  auto client = cluster_->Connect(TransportChoice::kTcp);
  ASSERT_TRUE(client.ok()) << client.status();
  VerifiedLoad load(client->get(), {.threads = 3,
                                    .keys = 30,
                                    .value_bytes_max = 8 * kKiB,
                                    .timeout = seconds(1),
                                    .seed = seed_});
  EXPECT_TRUE(load.WaitForCalls(600, seconds(60)));
  load.Stop();
  const LoadCounts counts = load.Take();
  EXPECT_TRUE(counts.right()) << counts.ToText();
  EXPECT_GT(counts.hits, 0U) << counts.ToText();
  EXPECT_FALSE(counts.errors.empty()) << "nothing was damaged: " << counts.ToText();
  const std::string text = Stopped(&proxy);
  EXPECT_THAT(text, HasSubstr("seed " + std::to_string(seed_)));
  EXPECT_THAT(text, Not(HasSubstr(" 0 flips"))) << "in both directions";
}

TEST_F(FaultProxyTest, ItCarriesHttpAsWell) {
  const std::string& pages = cluster_->server(0).ready().http_address;
  Daemon clean = StartProxy(pages);
  const Result<std::string> metrics = HttpGet(clean.ready().address, "/metrics");
  ASSERT_TRUE(metrics.ok()) << metrics.status();
  EXPECT_THAT(*metrics, HasSubstr("200 "));
  EXPECT_THAT(*metrics, HasSubstr("ems_server_"));
  EXPECT_THAT(Stopped(&clean, SIGINT), HasSubstr("1 connections"));

  Daemon slow = StartProxy(pages, {"--delay-ms", "200", "--way", "to-client"});
  const TimePoint start = Clock::System().Now();
  EXPECT_TRUE(HttpGet(slow.ready().address, "/healthz").ok());
  EXPECT_GE(Clock::System().Now() - start, milliseconds(200));

  Daemon broken = StartProxy(pages, {"--reset", "1", "--faults-after-s", "3"});
  EXPECT_TRUE(HttpGet(broken.ready().address, "/healthz").ok()) << "all is well at first";
  EXPECT_TRUE(Eventually([&] { return !HttpGet(broken.ready().address, "/healthz").ok(); }));
  EXPECT_THAT(Stopped(&broken), HasSubstr("1 resets"));
}

TEST(FaultProxyUsageTest, WrongFlagsAreNamed) {
  struct Case {
    std::vector<std::string> flags;
    std::string named;
  };
  const std::vector<std::string> good{"--target", "127.0.0.1:1"};
  for (const Case& one : std::vector<Case>{{{}, "--target"},
                                           {{"--target", "nowhere"}, "--target nowhere"},
                                           {{"--target", "example.org:80"}, "example.org"},
                                           {{"--flip", "2"}, "--flip"},
                                           {{"--drop", "-1"}, "--drop"},
                                           {{"--carry", "some"}, "--carry"},
                                           {{"--way", "up"}, "--way"},
                                           {{"--listen", "there"}, "--listen there"},
                                           {{"--lose", "1"}, "--lose"}}) {
    std::vector<std::string> flags = one.flags;
    if (!flags.empty() && flags[0] != "--target")
      flags.insert(flags.end(), good.begin(), good.end());
    const Result<ProgramOutput> ended = RunProgram(std::string(kProgram), flags);
    ASSERT_TRUE(ended.ok()) << ended.status();
    EXPECT_EQ(ended->exit_code, 2) << ended->out;
    EXPECT_THAT(ended->out, HasSubstr(one.named));
  }
}

TEST_F(FaultProxyTest, AnAddressThatIsTakenIsToldApart) {
  const std::string& taken = cluster_->server(0).ready().address;
  const Result<ProgramOutput> ended =
      RunProgram(std::string(kProgram), {"--listen", taken, "--target", "127.0.0.1:1"});
  ASSERT_TRUE(ended.ok()) << ended.status();
  EXPECT_EQ(ended->exit_code, 1);
  EXPECT_THAT(ended->out, HasSubstr(taken));
}

}  // namespace
}  // namespace ems::testing
