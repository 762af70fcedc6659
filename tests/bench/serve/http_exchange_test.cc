// What must hold: bodies of every framing come whole; what was cut, is late or is not HTTP is an
// error and never a shorter body.
#include "bench/serve/http_exchange.h"

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

HttpAsk AskOf(const HttpScript& server) {
  return {.address = "127.0.0.1:" + std::to_string(server.port()), .path = "/x"};
}

// The body of a 200, and how the exchange ended.
struct Got {
  Result<HttpAnswer> answer = HttpAnswer{};
  std::string body;
};
Got Get(const HttpScript& server, Duration timeout = kLong) {
  Got got;
  got.answer = ExchangeHttp(AskOf(server), Deadline::After(timeout), [&](std::string_view bytes) {
    got.body += bytes;
    return OkStatus();
  });
  return got;
}

Result<std::string> BodyOf(const HttpScript& server) {
  Got got = Get(server);
  if (!got.answer.ok()) return got.answer.status();
  return got.body;
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
  const Got refused = Get(lengths);
  ASSERT_TRUE(refused.answer.ok()) << ToString(refused.answer.status());
  EXPECT_EQ(refused.answer->status, 404);
  EXPECT_EQ(refused.answer->text, body);
  EXPECT_EQ(refused.body, "") << "only a 200's";

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
  // The last two bytes end an answer whose last chunk and trailer are there.
  for (const size_t bytes : {chunked.size() - 3, chunked.size() - 20, size_t{60}}) {
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
      "HTTP/1.1 200 OK\r\nX: " + std::string(400'000, 'x')};
  for (const std::string& text : heads) {
    const HttpScript server = Server(text);
    EXPECT_FALSE(BodyOf(server).ok()) << text.substr(0, 60);
  }
}

TEST(HttpExchangeTest, PiecesComeAsTheyAreSentAndAnErrorOfTheirTakerEndsIt) {
  const HttpScript stalled =
      Server("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n",
             ScriptReply::End::kHang);
  // Nothing follows for as long as the server lives: the piece came without what is behind it.
  const auto answer = ExchangeHttp(
      AskOf(stalled), Deadline::After(kLong),
      [](std::string_view bytes) { return Error(StatusCode::kCancelled, "{} is enough", bytes); });
  EXPECT_EQ(ToString(answer.status()), "CANCELLED: first is enough");
}

TEST(HttpExchangeTest, LateAndLongAnswersEnd) {
  const HttpScript silent = Server("", ScriptReply::End::kHang);
  EXPECT_EQ(Get(silent, std::chrono::milliseconds(20)).answer.status().code(),
            StatusCode::kDeadlineExceeded);
  const HttpScript stalled =
      Server("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nfour", ScriptReply::End::kHang);
  const Got late = Get(stalled, std::chrono::milliseconds(200));
  EXPECT_EQ(late.answer.status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(late.body, "four");

  const HttpScript endless =
      Server("HTTP/1.1 500 No\r\n\r\n" + std::string(HttpAnswer::kTextBytesMax + 1, 'x'));
  EXPECT_EQ(Get(endless).answer.status().code(), StatusCode::kResourceExhausted);
  const auto at = [](const char* address) {
    return ExchangeHttp({.address = address}, Deadline::After(kLong),
                        [](std::string_view) { return OkStatus(); })
        .status()
        .code();
  };
  EXPECT_EQ(at("127.0.0.1:1"), StatusCode::kUnavailable);
  EXPECT_EQ(at("nowhere"), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace ems::bench
