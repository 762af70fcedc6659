// What must hold: bodies of every framing come whole; what was cut, is late or is not HTTP is an
// error and never a shorter body.
#include "bench/http_exchange.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/support/http_script.h"

namespace ems::bench {
namespace {

using testing::HttpScript;
using testing::ScriptReply;

constexpr Duration kLong = std::chrono::seconds(10);

// A server that answers with these bytes and then does `end`.
HttpScript Server(std::string bytes, ScriptReply::End end = ScriptReply::End::kClose) {
  return HttpScript([bytes = std::move(bytes), end](const testing::ScriptRequest&) {
    return ScriptReply{.bytes = bytes, .end = end};
  });
}

Result<HttpExchange> Get(const HttpScript& server, Duration timeout = kLong) {
  return HttpExchange::Begin(
      {.address = "127.0.0.1:" + std::to_string(server.port()), .path = "/x"},
      Deadline::After(timeout));
}

Result<std::string> BodyOf(const HttpScript& server) {
  auto exchange = Get(server);
  if (!exchange.ok()) return exchange.status();
  return exchange->ReadAll(1'000'000);
}

std::string Chunked(const std::string& body, size_t piece) {
  std::string text = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (size_t at = 0; at < body.size(); at += piece) {
    const std::string part = body.substr(at, piece);
    text += fmt::format("{:x};ext=1\r\n{}\r\n", part.size(), part);
  }
  return text + "0\r\nTrailer: x\r\n\r\n";
}

TEST(HttpExchangeTest, BodiesOfEveryFramingComeWhole) {
  std::string body;
  for (int i = 0; body.size() < 100'000; ++i) body += std::to_string(i) + "\r\n";
  const HttpScript lengths = Server(
      fmt::format("HTTP/1.1 404 Not Found\r\ncontent-length: {}\r\n\r\n{}", body.size(), body),
      ScriptReply::End::kHang);
  auto exchange = Get(lengths);
  ASSERT_TRUE(exchange.ok()) << ToString(exchange.status());
  EXPECT_EQ(exchange->status(), 404);
  EXPECT_EQ(exchange->ReadAll(body.size()).value_or(""), body);
  EXPECT_EQ(exchange->Read().value_or("?"), "") << "the end stays the end";

  for (const size_t piece : {size_t{7}, size_t{16'384}, size_t{50'001}}) {
    const HttpScript chunks = Server(Chunked(body, piece), ScriptReply::End::kHang);
    EXPECT_EQ(BodyOf(chunks).value_or(""), body) << piece;
  }
  const HttpScript until_close = Server("HTTP/1.1 200 OK\r\n\r\n" + body);
  EXPECT_EQ(BodyOf(until_close).value_or(""), body);
  const HttpScript none = Server("HTTP/1.1 204 None\r\nContent-Length: 0\r\n\r\n");
  EXPECT_EQ(BodyOf(none).value_or("?"), "");
}

TEST(HttpExchangeTest, WhatWasCutIsAnError) {
  const std::string chunked = Chunked("hello, world", 6);
  for (const size_t bytes : {chunked.size() - 1, chunked.size() - 20, size_t{60}}) {
    const HttpScript server = Server(chunked.substr(0, bytes));
    EXPECT_EQ(BodyOf(server).status().code(), StatusCode::kUnavailable) << bytes;
  }
  const HttpScript length = Server("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nfour");
  EXPECT_EQ(BodyOf(length).status().code(), StatusCode::kUnavailable);
  const HttpScript head = Server("HTTP/1.1 200 OK\r\nContent-");
  EXPECT_EQ(BodyOf(head).status().code(), StatusCode::kUnavailable);
}

TEST(HttpExchangeTest, WhatIsNotHttpIsAnError) {
  const std::string heads[] = {
      "220 smtp ready\r\n\r\n",
      "HTTP/1.1 2x0 OK\r\n\r\n",
      "HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
      "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
      "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n0\r\n\r\n",
      "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + std::string(1000, '1'),
      "HTTP/1.1 200 OK\r\nX: " + std::string(40'000, 'x')};
  for (const std::string& text : heads) {
    const HttpScript server = Server(text);
    EXPECT_EQ(BodyOf(server).status().code(), StatusCode::kInternal) << text.substr(0, 60);
  }
}

TEST(HttpExchangeTest, LateAndLongAnswersEnd) {
  const HttpScript silent = Server("", ScriptReply::End::kHang);
  EXPECT_EQ(Get(silent, std::chrono::milliseconds(20)).status().code(),
            StatusCode::kDeadlineExceeded);
  const HttpScript stalled =
      Server("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nfour", ScriptReply::End::kHang);
  auto exchange = Get(stalled, std::chrono::milliseconds(200));
  ASSERT_TRUE(exchange.ok()) << ToString(exchange.status());
  EXPECT_EQ(exchange->ReadAll(100).status().code(), StatusCode::kDeadlineExceeded);

  const HttpScript endless = Server(Chunked(std::string(1000, 'x'), 10));
  auto too_long = Get(endless);
  ASSERT_TRUE(too_long.ok());
  EXPECT_EQ(too_long->ReadAll(999).status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(HttpExchange::Begin({.address = "127.0.0.1:1"}, Deadline::After(kLong)).status().code(),
            StatusCode::kUnavailable);
  EXPECT_EQ(HttpExchange::Begin({.address = "nowhere"}, Deadline::After(kLong)).status().code(),
            StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace ems::bench
