// What must hold: three pages, right codes, and nonsense harms nobody.
#include "fabric/http/http_endpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <vector>

#include "tests/support/wire_peer.h"

namespace ems::fabric {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using testing::WirePeer;

std::string Get(const std::string& address, const std::string& path) {
  WirePeer peer = WirePeer::Connect(address);
  EXPECT_TRUE(peer.Send("GET " + path + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"));
  return peer.ReceiveAll().value_or("");
}

TEST(HttpEndpointTest, ServesMetricsHealthAndReadiness) {
  MetricsRegistry registry;
  Gauge gauge = registry.AddGauge("ems_test_things", "Things");
  std::atomic<bool> ready{false};
  Result<std::unique_ptr<HttpEndpoint>> http = HttpEndpoint::Start(
      "127.0.0.1:0", &registry, [] { return OkStatus(); },
      [&] { return ready ? OkStatus() : Error(StatusCode::kUnavailable, "no view yet"); },
      [&] { gauge.Set(42); });
  ASSERT_TRUE(http.ok()) << http.status();
  const std::string address = (*http)->address();
  const std::string page = Get(address, "/metrics");
  EXPECT_THAT(page, HasSubstr("ems_test_things 42"));
  EXPECT_THAT(page, HasSubstr("Content-Type: text/plain; version=0.0.4\r\n"));
  EXPECT_THAT(Get(address, "/metrics?x=1"), HasSubstr("ems_test_things 42"));
  EXPECT_THAT(Get(address, "/healthz"), StartsWith("HTTP/1.1 200"));
  const std::string not_ready = Get(address, "/readyz");
  EXPECT_THAT(not_ready, StartsWith("HTTP/1.1 503"));
  EXPECT_THAT(not_ready, HasSubstr("no view yet"));
  ready = true;
  EXPECT_THAT(Get(address, "/readyz"), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(Get(address, "/nothing"), StartsWith("HTTP/1.1 404"));
}

std::string Post(const std::string& address, const std::string& path, const std::string& body) {
  WirePeer peer = WirePeer::Connect(address);
  EXPECT_TRUE(peer.Send("POST " + path + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" +
                        "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body));
  return peer.ReceiveAll().value_or("");
}

TEST(HttpEndpointTest, APageThatTakesTextAnswersWithItsStatus) {
  MetricsRegistry registry;
  std::string taken;
  const auto take = [&taken](const std::string& body) {
    if (body == "bad") return Error(StatusCode::kInvalidArgument, "not that");
    taken = body;
    return OkStatus();
  };
  Result<std::unique_ptr<HttpEndpoint>> http = HttpEndpoint::Start(
      "127.0.0.1:0", &registry, [] { return OkStatus(); }, [] { return OkStatus(); }, {},
      {{.path = "/tell", .take = take}});
  ASSERT_TRUE(http.ok()) << http.status();
  EXPECT_THAT(Post((*http)->address(), "/tell", "a=kill b=error"), StartsWith("HTTP/1.1 200"));
  EXPECT_EQ(taken, "a=kill b=error");
  const std::string refused = Post((*http)->address(), "/tell", "bad");
  EXPECT_THAT(refused, StartsWith("HTTP/1.1 400"));
  EXPECT_THAT(refused, HasSubstr("not that"));
  EXPECT_THAT(Get((*http)->address(), "/tell"), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(Post((*http)->address(), "/other", "x"), StartsWith("HTTP/1.1 404"));
}

TEST(HttpEndpointTest, AFurtherPageMayStream) {
  MetricsRegistry registry;
  const auto show = [](const std::shared_ptr<HttpExchange>& exchange) {
    exchange->StartStream({.content_type = "text/event-stream", .body = "one "});
    exchange->Write("two");
    exchange->Finish();
  };
  Result<std::unique_ptr<HttpEndpoint>> http = HttpEndpoint::Start(
      "127.0.0.1:0", &registry, [] { return OkStatus(); }, [] { return OkStatus(); }, {}, {},
      {{.path = "/told", .show = show}});
  ASSERT_TRUE(http.ok()) << http.status();
  const std::string told = Get((*http)->address(), "/told");
  EXPECT_THAT(told, StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(told, HasSubstr("4\r\none \r\n3\r\ntwo\r\n0\r\n"));
  EXPECT_THAT(Post((*http)->address(), "/told", ""), StartsWith("HTTP/1.1 404"));
}

TEST(HttpEndpointTest, LongAndBrokenRequestsAreRefused) {
  MetricsRegistry registry;
  Result<std::unique_ptr<HttpEndpoint>> http = HttpEndpoint::Start(
      "127.0.0.1:0", &registry, [] { return OkStatus(); }, [] { return OkStatus(); });
  ASSERT_TRUE(http.ok()) << http.status();
  const std::string long_answer = Get((*http)->address(), "/" + std::string(20'000, 'x'));
  EXPECT_THAT(long_answer, ::testing::Not(StartsWith("HTTP/1.1 200")));
  {
    WirePeer peer = WirePeer::Connect((*http)->address());
    (void)peer.Send(std::string("\0\1\2garbage\r\n\r\n", 14));
    EXPECT_TRUE(peer.WaitClosed());
  }
  {
    WirePeer peer = WirePeer::Connect((*http)->address());
    (void)peer.Send("POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000000\r\n\r\n");
    EXPECT_TRUE(peer.WaitClosed());
  }
  EXPECT_THAT(Get((*http)->address(), "/healthz"), StartsWith("HTTP/1.1 200"));
}

TEST(HttpEndpointTest, ALargePageComesWhole) {
  MetricsRegistry registry;
  const size_t things = 2000;
  for (size_t i = 0; i < things; ++i) {
    registry.AddGauge("ems_test_things_" + std::to_string(i), std::string(1000, 'h'));
  }
  Result<std::unique_ptr<HttpEndpoint>> http = HttpEndpoint::Start(
      "127.0.0.1:0", &registry, [] { return OkStatus(); }, [] { return OkStatus(); });
  ASSERT_TRUE(http.ok()) << http.status();
  const std::string page = Get((*http)->address(), "/metrics");
  EXPECT_GT(page.size(), 1000 * things);
  EXPECT_THAT(page, HasSubstr("ems_test_things_" + std::to_string(things - 1) + " 0"));
}

TEST(HttpEndpointTest, SlowClientsDoNotKeepOthersWaiting) {
  MetricsRegistry registry;
  Result<std::unique_ptr<HttpEndpoint>> http = HttpEndpoint::Start(
      "127.0.0.1:0", &registry, [] { return OkStatus(); }, [] { return OkStatus(); });
  ASSERT_TRUE(http.ok()) << http.status();
  std::vector<WirePeer> slow;
  for (int i = 0; i < 60; ++i) {
    slow.push_back(WirePeer::Connect((*http)->address()));
    ASSERT_TRUE(slow.back().Send("GET /healthz HT"));
  }
  EXPECT_THAT(Get((*http)->address(), "/healthz"), StartsWith("HTTP/1.1 200"));
}

TEST(HttpEndpointTest, AConnectionIsClosedAfterItsAnswer) {
  MetricsRegistry registry;
  Result<std::unique_ptr<HttpEndpoint>> http = HttpEndpoint::Start(
      "127.0.0.1:0", &registry, [] { return OkStatus(); }, [] { return OkStatus(); });
  ASSERT_TRUE(http.ok()) << http.status();
  WirePeer peer = WirePeer::Connect((*http)->address());
  ASSERT_TRUE(peer.Send("GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"));
  EXPECT_THAT(peer.ReceiveAll().value_or(""), HasSubstr("Connection: close\r\n"));
}

}  // namespace
}  // namespace ems::fabric
