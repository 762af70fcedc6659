// What must hold of one connection: each step has its time, what is sent ahead is bounded, and a
// side that is closed after the question does not cost the answer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/thread_pool.h"
#include "tests/support/http_desk.h"

namespace ems::fabric {
namespace {

using ::testing::EndsWith;
using testing::Serve;
using ::testing::StartsWith;
using testing::WirePeer;

constexpr Duration kShort = std::chrono::milliseconds(60);
constexpr std::string_view kGet = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";

void Ok(const std::shared_ptr<HttpExchange>& exchange) { exchange->Reply({.body = "ok"}); }

TEST(HttpConnectionTest, SlowRequestsAreRefusedAndIdleConnectionsClosed) {
  MetricsRegistry registry;
  HttpMetrics metrics{.timeouts = registry.AddCounter("t", "")};
  auto server =
      Serve(Ok, {.head_timeout = kShort, .body_timeout = kShort, .idle_timeout = kShort}, metrics);
  WirePeer head = WirePeer::Connect(server->address());
  ASSERT_TRUE(head.Send("GET / HT"));
  EXPECT_THAT(head.ReceiveAll().value_or(""), StartsWith("HTTP/1.1 408"));
  WirePeer body = WirePeer::Connect(server->address());
  ASSERT_TRUE(body.Send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nab"));
  EXPECT_THAT(body.ReceiveAll().value_or(""), StartsWith("HTTP/1.1 408"));
  EXPECT_EQ(metrics.timeouts.value(), 2);
  WirePeer silent = WirePeer::Connect(server->address());
  EXPECT_EQ(silent.ReceiveAll(), "");
  WirePeer idle = WirePeer::Connect(server->address());
  ASSERT_TRUE(idle.Send(kGet));
  EXPECT_THAT(idle.ReceiveAll().value_or(""), EndsWith("ok"));
  EXPECT_EQ(metrics.timeouts.value(), 2);
}

TEST(HttpConnectionTest, AnAnswerThatNeverEndsIsCut) {
  StopFlag told;
  auto server = Serve(
      [&told](const std::shared_ptr<HttpExchange>& exchange) {
        exchange->OnGone([&told] { told.Set(); });
      },
      {.answer_timeout = kShort});
  WirePeer peer = WirePeer::Connect(server->address());
  ASSERT_TRUE(peer.Send(kGet));
  EXPECT_EQ(peer.ReceiveAll(), "");
  EXPECT_TRUE(told.WaitFor(std::chrono::seconds(10)));
}

TEST(HttpConnectionTest, AReaderThatStopsIsCutAfterTheWriteTimeout) {
  StopFlag told;
  auto server = Serve(
      [&told](const std::shared_ptr<HttpExchange>& exchange) {
        exchange->OnGone([&told] { told.Set(); });
        exchange->StartStream({.body = std::string(64 * kMiB, 'x')});
      },
      {.write_timeout = kShort});
  WirePeer peer = WirePeer::Connect(server->address());
  ASSERT_TRUE(peer.Send(kGet));
  EXPECT_TRUE(told.WaitFor(std::chrono::seconds(10)));
}

TEST(HttpConnectionTest, WhatIsSentAheadIsBounded) {
  StopFlag told;
  auto server = Serve(
      [&told](const std::shared_ptr<HttpExchange>& exchange) {
        exchange->OnGone([&told] { told.Set(); });
      },
      {});
  WirePeer peer = WirePeer::Connect(server->address());
  ASSERT_TRUE(peer.Send(kGet));
  (void)peer.Send(std::string(200 * kKiB, 'x'));
  EXPECT_TRUE(told.WaitFor(std::chrono::seconds(10)));
}

TEST(HttpConnectionTest, AnAnswerThatIsThereAtOnceReachesWhoClosedItsSide) {
  auto server = Serve(
      [](const std::shared_ptr<HttpExchange>& exchange) {
        exchange->Reply({.body = std::string(8 * kMiB, 'x')});
      },
      {});
  WirePeer peer = WirePeer::Connect(server->address());
  ASSERT_TRUE(peer.Send(kGet));
  ASSERT_TRUE(peer.Receive(20).has_value());
  peer.HalfClose();
  EXPECT_GT(peer.ReceiveAll().value_or("").size(), 8 * kMiB);
}

}  // namespace
}  // namespace ems::fabric
