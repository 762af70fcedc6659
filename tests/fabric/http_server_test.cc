// What must hold: whole answers and streams, from any thread; clients that leave are told of at
// once; limits, deadlines and stopping leave nobody waiting.
#include "fabric/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <deque>

#include "common/thread_pool.h"
#include "tests/support/wire_peer.h"

namespace ems::fabric {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using testing::WirePeer;

constexpr Duration kPatience = std::chrono::seconds(10);

// Keeps exchanges until a test answers them.
class Desk {
 public:
  HttpHandler handler() {
    return [this](std::shared_ptr<HttpExchange> exchange) {
      {
        auto waiting = waiting_.Lock();
        waiting->push_back(std::move(exchange));
      }
      changed_.notify_all();
    };
  }
  std::shared_ptr<HttpExchange> Take() {
    auto waiting = waiting_.Lock();
    if (!waiting.WaitFor(changed_, kPatience, [](const auto& w) { return !w.empty(); })) return {};
    auto exchange = waiting->front();
    waiting->pop_front();
    return exchange;
  }

 private:
  Guarded<std::deque<std::shared_ptr<HttpExchange>>> waiting_;
  std::condition_variable changed_;
};

std::unique_ptr<HttpServer> Serve(HttpHandler handler, HttpServerOptions options = {},
                                  const HttpMetrics& metrics = {}) {
  options.listen = "127.0.0.1:0";
  auto server = HttpServer::Start(options, std::move(handler), metrics);
  EXPECT_TRUE(server.ok()) << server.status();
  return std::move(*server);
}

void Echo(const std::shared_ptr<HttpExchange>& exchange) {
  const HttpRequest& request = exchange->request();
  exchange->Reply({.content_type = "text/plain",
                   .headers = {{"X-Method", request.method}},
                   .body = request.path + "|" + request.body});
}

std::string Post(std::string_view path, std::string_view body, std::string_view headers = {}) {
  return "POST " + std::string(path) + " HTTP/1.1\r\nHost: x\r\n" + std::string(headers) +
         "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + std::string(body);
}

std::string Ask(const HttpServer& server, std::string_view request) {
  WirePeer peer = WirePeer::Connect(server.address());
  EXPECT_TRUE(peer.Send(request));
  return peer.ReceiveAll().value_or("not closed");
}

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

TEST(HttpServerTest, HeadHasTheLengthAndNoBody) {
  auto server = Serve(Echo);
  const std::string answer =
      Ask(*server, "HEAD /a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  EXPECT_THAT(answer, HasSubstr("Content-Length: 3\r\n"));
  EXPECT_THAT(answer, EndsWith("\r\n\r\n"));
}

TEST(HttpServerTest, StreamsFromAnotherThread) {
  Desk desk;
  auto server = Serve(desk.handler());
  WirePeer peer = WirePeer::Connect(server->address());
  ASSERT_TRUE(peer.Send(Post("/", "", "Connection: close\r\n")));
  auto exchange = desk.Take();
  ASSERT_NE(exchange, nullptr);
  ASSERT_TRUE(exchange->StartStream({.content_type = "text/event-stream", .body = "hello "}));
  const std::string head =
      "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"
      "Connection: close\r\n\r\n6\r\nhello \r\n";
  // It is out before there is more.
  EXPECT_EQ(peer.Receive(head.size()), head);
  EXPECT_TRUE(exchange->Write("world"));
  EXPECT_TRUE(exchange->Write(""));
  EXPECT_EQ(peer.Receive(10), "5\r\nworld\r\n");
  EXPECT_TRUE(exchange->Finish());
  EXPECT_EQ(peer.ReceiveAll(), "0\r\n\r\n");
  // It is over.
  EXPECT_FALSE(exchange->Write("more"));
  EXPECT_FALSE(exchange->Finish());
  EXPECT_FALSE(exchange->Reply({}));
}

TEST(HttpServerTest, StreamsWithoutChunksToHttp10) {
  auto server = Serve([](const std::shared_ptr<HttpExchange>& exchange) {
    exchange->StartStream({.body = "a"});
    exchange->Write("b");
    exchange->Finish();
  });
  const std::string answer = Ask(*server, "GET / HTTP/1.0\r\n\r\n");
  EXPECT_THAT(answer, Not(HasSubstr("chunked")));
  EXPECT_THAT(answer, EndsWith("\r\n\r\nab"));
}

TEST(HttpServerTest, AClientThatLeavesIsToldOfWhileItsAnswerWaitsOrStreams) {
  Desk desk;
  MetricsRegistry registry;
  HttpMetrics metrics{.connections = registry.AddGauge("c", ""),
                      .gone = registry.AddCounter("g", "")};
  auto server = Serve(desk.handler(), {}, metrics);
  int gone = 0;
  for (const bool stream : {false, true}) {
    for (const bool reset : {false, true}) {
      WirePeer peer = WirePeer::Connect(server->address());
      ASSERT_TRUE(peer.Send(Post("/", "")));
      auto exchange = desk.Take();
      ASSERT_NE(exchange, nullptr);
      if (stream) {
        EXPECT_TRUE(exchange->StartStream({.body = "x"}));
        EXPECT_TRUE(peer.Receive(20).has_value());
      }
      StopFlag told;
      exchange->OnGone([&told] { told.Set(); });
      reset ? peer.Reset() : peer.Close();
      EXPECT_TRUE(told.WaitFor(kPatience));
      EXPECT_FALSE(stream ? exchange->Write("y") : exchange->Reply({}));
      EXPECT_EQ(metrics.gone.value(), ++gone);
      bool late = false;
      exchange->OnGone([&late] { late = true; });
      EXPECT_TRUE(late);
    }
  }
}

TEST(HttpServerTest, NobodyIsToldOfAClientThatLeavesWithItsAnswer) {
  Desk desk;
  auto server = Serve(desk.handler());
  WirePeer peer = WirePeer::Connect(server->address());
  ASSERT_TRUE(peer.Send(Post("/", "", "Connection: close\r\n")));
  auto exchange = desk.Take();
  ASSERT_NE(exchange, nullptr);
  std::atomic<bool> told{false};
  exchange->OnGone([&told] { told = true; });
  EXPECT_TRUE(exchange->Reply({.body = "done"}));
  EXPECT_THAT(peer.ReceiveAll().value_or(""), EndsWith("done"));
  server->Stop(kPatience);
  EXPECT_FALSE(told);
}

TEST(HttpServerTest, AReaderThatDoesNotReadLosesItsConnection) {
  Desk desk;
  auto server = Serve(desk.handler(), {.unsent_bytes_max = 64 * kKiB});
  WirePeer peer = WirePeer::Connect(server->address());
  ASSERT_TRUE(peer.Send(Post("/", "")));
  auto exchange = desk.Take();
  ASSERT_NE(exchange, nullptr);
  StopFlag told;
  exchange->OnGone([&told] { told.Set(); });
  ASSERT_TRUE(exchange->StartStream({}));
  // The kernel's buffers fill first; they are some MiB at most.
  const std::string part(4 * kKiB, 'x');
  for (int i = 0; i < 100'000 && exchange->Write(part); ++i) {
  }
  EXPECT_FALSE(exchange->Write("x"));
  EXPECT_TRUE(told.WaitFor(kPatience));
}

TEST(HttpServerTest, DeadlinesAreCalledAndMayAnswer) {
  Desk desk;
  auto server = Serve(desk.handler());
  WirePeer peer = WirePeer::Connect(server->address());
  ASSERT_TRUE(peer.Send(Post("/", "", "Connection: close\r\n")));
  auto exchange = desk.Take();
  ASSERT_NE(exchange, nullptr);
  exchange->OnDeadline(Clock::System().Now(), [exchange] {
    exchange->OnDeadline(Clock::System().Now(), [exchange] { exchange->Reply({.status = 504}); });
  });
  EXPECT_THAT(peer.ReceiveAll().value_or(""), StartsWith("HTTP/1.1 504 Gateway Timeout\r\n"));
}

TEST(HttpServerTest, AbortCutsAnAnswer) {
  Desk desk;
  auto server = Serve(desk.handler());
  WirePeer peer = WirePeer::Connect(server->address());
  ASSERT_TRUE(peer.Send(Post("/", "")));
  auto exchange = desk.Take();
  ASSERT_NE(exchange, nullptr);
  ASSERT_TRUE(exchange->StartStream({.body = "x"}));
  ASSERT_TRUE(peer.Receive(20).has_value());
  exchange->Abort();
  EXPECT_THAT(peer.ReceiveAll().value_or("0\r\n\r\n"), Not(EndsWith("0\r\n\r\n")));
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
