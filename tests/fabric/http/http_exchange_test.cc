// What must hold: whole answers and streams, from any thread; clients that leave are told of at
// once; a reader that does not read and a deadline end what would wait.
#include "fabric/http/http_exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "common/thread_pool.h"
#include "tests/support/eventually.h"
#include "tests/support/http_desk.h"

namespace ems::fabric {
namespace {

using testing::Ask;
using testing::Desk;
using testing::Echo;
using ::testing::EndsWith;
using testing::Eventually;
using ::testing::HasSubstr;
using testing::kPatience;
using ::testing::Not;
using testing::Post;
using testing::Serve;
using ::testing::StartsWith;
using testing::WirePeer;

TEST(HttpExchangeTest, HeadHasTheLengthAndNoBody) {
  auto server = Serve(Echo);
  const std::string answer =
      Ask(*server, "HEAD /a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  EXPECT_THAT(answer, HasSubstr("Content-Length: 3\r\n"));
  EXPECT_THAT(answer, EndsWith("\r\n\r\n"));
}

TEST(HttpExchangeTest, StreamsFromAnotherThread) {
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

TEST(HttpExchangeTest, StreamsWithoutChunksToHttp10) {
  auto server = Serve([](const std::shared_ptr<HttpExchange>& exchange) {
    exchange->StartStream({.body = "a"});
    exchange->Write("b");
    exchange->Finish();
  });
  const std::string answer = Ask(*server, "GET / HTTP/1.0\r\n\r\n");
  EXPECT_THAT(answer, Not(HasSubstr("chunked")));
  EXPECT_THAT(answer, EndsWith("\r\n\r\nab"));
}

TEST(HttpExchangeTest, AClientThatLeavesIsToldOfWhileItsAnswerWaitsOrStreams) {
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

TEST(HttpExchangeTest, NobodyIsToldOfAClientThatLeavesWithItsAnswer) {
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

TEST(HttpExchangeTest, AReaderThatDoesNotReadLosesItsConnection) {
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

TEST(HttpExchangeTest, SaysWhatItsReaderHasNotTaken) {
  Desk desk;
  auto server = Serve(desk.handler(), {.unsent_bytes_max = 64 * kMiB});
  WirePeer peer = WirePeer::Connect(server->address());
  ASSERT_TRUE(peer.Send(Post("/", "", "Connection: close\r\n")));
  auto exchange = desk.Take();
  ASSERT_NE(exchange, nullptr);
  EXPECT_EQ(exchange->unsent_bytes(), 0u);
  ASSERT_TRUE(exchange->StartStream({}));
  ASSERT_TRUE(exchange->Write(std::string(32 * kMiB, 'x')));  // more than the kernel's buffers hold
  EXPECT_GT(exchange->unsent_bytes(), 1 * kMiB);
  ASSERT_TRUE(exchange->Finish());
  EXPECT_TRUE(peer.ReceiveAll().has_value());
  EXPECT_TRUE(Eventually([&] { return exchange->unsent_bytes() == 0; }));
}

TEST(HttpExchangeTest, DeadlinesAreCalledAndMayAnswer) {
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

TEST(HttpExchangeTest, AbortCutsAnAnswer) {
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

}  // namespace
}  // namespace ems::fabric
