// What must hold: requests are answered in their order; limits and stopping leave nobody waiting.
#include "fabric/http/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/thread_pool.h"
#include "tests/support/http_desk.h"

namespace ems::fabric {
namespace {

using testing::Ask;
using testing::Desk;
using testing::Echo;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using testing::kPatience;
using ::testing::Not;
using testing::Post;
using testing::Serve;
using ::testing::StartsWith;
using testing::WirePeer;

TEST(HttpServerTest, AnswersSeveralRequestsOnAConnection) {
  auto server = Serve(Echo);
  const std::string close = "Connection: close\r\n";
  // Sent at once: they are answered in order.
  const std::string answers = Ask(*server, Post("/a", "one") + Post("/b", "two") +
                                               Post("/c", "three", close) + Post("/d", "four"));
  EXPECT_THAT(answers, StartsWith("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"
                                  "Content-Length: 6\r\nX-Method: POST\r\n"
                                  "Connection: keep-alive\r\n\r\n/a|oneHTTP/1.1 200"));
  EXPECT_THAT(answers, HasSubstr("/b|twoHTTP/1.1"));
  EXPECT_THAT(answers, EndsWith("Connection: close\r\n\r\n/c|three"));
}

TEST(HttpServerTest, RefusalsLookAsTheOwnerWants) {
  HttpServerOptions options{.limits = {.body_bytes_max = 1000}};
  options.refusal = [](int status, const std::string& why) {
    return HttpReply{.status = status, .headers = {{"X-Why", "yes"}}, .body = "<" + why + ">"};
  };
  auto server = Serve(Echo, options);
  // The body is under way when the answer comes; the sender gets to read it.
  const std::string too_long = Ask(*server, Post("/", std::string(3'000'000, 'x')));
  EXPECT_THAT(too_long, StartsWith("HTTP/1.1 413 Content Too Large\r\n"));
  EXPECT_THAT(too_long, HasSubstr("X-Why: yes"));
  EXPECT_THAT(too_long, EndsWith("<the body is longer than 1000 bytes>"));
  EXPECT_THAT(Ask(*server, "nonsense\r\n\r\n"), StartsWith("HTTP/1.1 400"));
  auto plain = Serve(Echo);
  EXPECT_THAT(Ask(*plain, "GET / HTTP/3\r\n\r\n"), StartsWith("HTTP/1.1 505"));
}

TEST(HttpServerTest, WhoAsksBeforeSendingABodyIsToldToGoOnOrNot) {
  auto server = Serve(Echo, {.limits = {.body_bytes_max = 1000}});
  const std::string head =
      "POST /a HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
      "Connection: close\r\nContent-Length: ";
  WirePeer peer = WirePeer::Connect(server->address());
  ASSERT_TRUE(peer.Send(head + "3\r\n\r\n"));
  EXPECT_EQ(peer.Receive(25), "HTTP/1.1 100 Continue\r\n\r\n");
  ASSERT_TRUE(peer.Send("abc"));
  EXPECT_THAT(peer.ReceiveAll().value_or(""), EndsWith("/a|abc"));
  EXPECT_THAT(Ask(*server, head + "1001\r\n\r\n"), StartsWith("HTTP/1.1 413"));
}

TEST(HttpServerTest, ConnectionsAreBounded) {
  MetricsRegistry registry;
  HttpMetrics metrics{.refused = registry.AddCounter("r", "")};
  auto server = Serve(Echo, {.connections_max = 1}, metrics);
  WirePeer first = WirePeer::Connect(server->address());
  ASSERT_TRUE(first.Send(Post("/", "")));
  ASSERT_TRUE(first.Receive(20).has_value());
  WirePeer second = WirePeer::Connect(server->address());
  EXPECT_THAT(second.ReceiveAll().value_or(""), StartsWith("HTTP/1.1 503"));
  EXPECT_EQ(metrics.refused.value(), 1);
  first.Close();
  // The place is free again as soon as the server has noticed.
  bool served = false;
  for (const Deadline end = Deadline::After(kPatience); !served && !end.Passed();) {
    served = Ask(*server, Post("/", "", "Connection: close\r\n")).starts_with("HTTP/1.1 200");
  }
  EXPECT_TRUE(served);
}

TEST(HttpServerTest, StopWaitsForAnswersAndRefusesRequests) {
  Desk desk;
  auto server = Serve(desk.handler());
  const std::string address = server->address();
  WirePeer idle = WirePeer::Connect(address);
  WirePeer peer = WirePeer::Connect(address);
  ASSERT_TRUE(peer.Send(Post("/", "")));
  auto exchange = desk.Take();
  ASSERT_NE(exchange, nullptr);
  Thread stopper("stopper", [&server] { server->Stop(kPatience); });
  EXPECT_TRUE(idle.WaitClosed());
  ASSERT_TRUE(peer.Send(Post("/late", "")));
  EXPECT_TRUE(exchange->Reply({.body = "answer"}));
  const std::string answers = peer.ReceiveAll().value_or("");
  EXPECT_THAT(answers, HasSubstr("answer"));
  EXPECT_THAT(answers, Not(HasSubstr("late")));
  stopper.Join();
  EXPECT_FALSE(WirePeer::Connect(address).connected());
}

TEST(HttpServerTest, StopWithoutPatienceTellsThoseWhoAreLeft) {
  Desk desk;
  auto server = Serve(desk.handler());
  WirePeer peer = WirePeer::Connect(server->address());
  ASSERT_TRUE(peer.Send(Post("/", "")));
  auto exchange = desk.Take();
  ASSERT_NE(exchange, nullptr);
  bool told = false;
  exchange->OnGone([&told] { told = true; });
  server.reset();
  EXPECT_TRUE(told);
  EXPECT_FALSE(exchange->Reply({}));
  EXPECT_TRUE(peer.WaitClosed());
}

TEST(HttpServerTest, BadAndTakenAddressesAreErrors) {
  auto start = [](const std::string& listen) {
    return HttpServer::Start({.listen = listen}, Echo).status();
  };
  EXPECT_EQ(start("nonsense").code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(start("unix:/x").code(), StatusCode::kInvalidArgument);
  auto first = Serve(Echo);
  EXPECT_EQ(start(first->address()).code(), StatusCode::kUnavailable);
}

}  // namespace
}  // namespace ems::fabric
