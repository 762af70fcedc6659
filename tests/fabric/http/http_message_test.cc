// What must hold: a request reads the same in any pieces; what two readers could understand
// differently, or what exceeds the limits, is refused with the right status.
#include "fabric/http/http_message.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ems::fabric {
namespace {

using ::testing::HasSubstr;

// In pieces of `piece` bytes. What is not taken is returned.
std::string FeedAll(HttpParser* parser, std::string_view text, size_t piece = 1) {
  while (!text.empty() && !parser->done() && !parser->failed()) {
    text.remove_prefix(parser->Feed(text.substr(0, piece)));
  }
  return std::string(text);
}

int StatusOf(std::string_view text, HttpLimits limits = {}) {
  HttpParser parser(limits);
  FeedAll(&parser, text, text.size());
  HttpParser byte_by_byte(limits);
  FeedAll(&byte_by_byte, text);
  EXPECT_EQ(parser.error_status(), byte_by_byte.error_status()) << text;
  EXPECT_EQ(parser.done(), byte_by_byte.done()) << text;
  if (parser.done()) return 200;
  return parser.failed() ? parser.error_status() : 100;
}

std::string Headed(std::string_view headers) {
  return "POST /a HTTP/1.1\r\nHost: x\r\n" + std::string(headers) + "\r\n";
}

TEST(HttpMessageTest, ReadsARequestInAnyPieces) {
  const std::string text =
      "\r\nPOST /v1/x?a=b?c HTTP/1.1\r\nHost: example\r\nX-Thing:  two words \t\r\n"
      "content-LENGTH: 5\r\n\r\nhelloGET / HTTP/1.1\r\n";
  for (size_t piece = 1; piece <= text.size(); ++piece) {
    HttpParser parser({});
    EXPECT_EQ(FeedAll(&parser, text, piece), "GET / HTTP/1.1\r\n") << piece;
    ASSERT_TRUE(parser.done()) << parser.error();
    EXPECT_EQ(parser.request().method, "POST");
    EXPECT_EQ(parser.request().path, "/v1/x");
    EXPECT_EQ(parser.request().query, "a=b?c");
    EXPECT_EQ(parser.request().Header("x-thing"), "two words");
    EXPECT_EQ(parser.request().Header("x-other"), "");
    EXPECT_EQ(parser.request().body, "hello");
    EXPECT_TRUE(parser.request().keep_alive);
  }
}

TEST(HttpMessageTest, ReadsChunksAndThrowsTrailersAway) {
  const std::string text = Headed("Transfer-Encoding: Chunked\r\n") +
                           "3\r\nabc\r\n0A;ext=1\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\nrest";
  for (size_t piece = 1; piece <= text.size(); ++piece) {
    HttpParser parser({});
    EXPECT_EQ(FeedAll(&parser, text, piece), "rest") << piece;
    ASSERT_TRUE(parser.done()) << parser.error();
    EXPECT_EQ(parser.request().body, "abc0123456789");
  }
}

TEST(HttpMessageTest, KnowsWhoKeepsTheConnectionAndWhoWaits) {
  auto read = [](const std::string& text) {
    HttpParser parser({});
    FeedAll(&parser, text, text.size());
    return parser;
  };
  EXPECT_FALSE(read(Headed("Connection: foo, Close\r\n")).request().keep_alive);
  EXPECT_FALSE(read("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").request().keep_alive);
  EXPECT_TRUE(read("GET / HTTP/1.0\r\n\r\n").request().http_1_0);
  const HttpParser waits = read(Headed("Expect: 100-Continue\r\nContent-Length: 3\r\n"));
  EXPECT_TRUE(waits.in_body());
  EXPECT_TRUE(waits.expects_continue());
  EXPECT_FALSE(read(Headed("Content-Length: 3\r\n")).expects_continue());
}

TEST(HttpMessageTest, RefusesWhatReadersMayUnderstandDifferently) {
  EXPECT_EQ(StatusOf(Headed("Content-Length: 3\r\nTransfer-Encoding: chunked\r\n")), 400);
  EXPECT_EQ(StatusOf(Headed("Content-Length: 3\r\nContent-Length: 3\r\n")), 400);
  EXPECT_EQ(StatusOf(Headed("Content-Length: +3\r\n")), 400);
  EXPECT_EQ(StatusOf(Headed("Content-Length: 3, 3\r\n")), 400);
  EXPECT_EQ(StatusOf(Headed("Content-Length:\r\n")), 400);
  EXPECT_EQ(StatusOf(Headed("Transfer-Encoding: gzip, chunked\r\n")), 501);
  EXPECT_EQ(StatusOf(Headed("Name : value\r\n")), 400);
  EXPECT_EQ(StatusOf(Headed("Name: value\r\n folded\r\n")), 400);
  EXPECT_EQ(StatusOf(Headed("Name: a\nb\r\n")), 400);
  EXPECT_EQ(StatusOf(Headed("Host: y\r\n")), 400);
  EXPECT_EQ(StatusOf("GET / HTTP/1.1\r\n\r\n"), 400);
  EXPECT_EQ(StatusOf("GET http://x/ HTTP/1.1\r\nHost: x\r\n\r\n"), 400);
  EXPECT_EQ(StatusOf("GET /a b HTTP/1.1\r\nHost: x\r\n\r\n"), 400);
  EXPECT_EQ(StatusOf("GET / HTTP/2.0\r\nHost: x\r\n\r\n"), 505);
  EXPECT_EQ(StatusOf("G(T / HTTP/1.1\r\nHost: x\r\n\r\n"), 400);
  EXPECT_EQ(StatusOf(std::string("\0\1\2garbage\r\n\r\n", 14)), 400);
  EXPECT_EQ(StatusOf(Headed("Expect: tea\r\n")), 417);
  const std::string chunked = Headed("Transfer-Encoding: chunked\r\n");
  EXPECT_EQ(StatusOf(chunked + "3\r\nabcd\r\n"), 400);
  EXPECT_EQ(StatusOf(chunked + "3\nabc\r\n"), 400);
  EXPECT_EQ(StatusOf(chunked + "0x3\r\nabc\r\n"), 400);
  EXPECT_EQ(StatusOf(chunked + "-1\r\n"), 400);
  EXPECT_EQ(StatusOf(chunked + "\r\n"), 400);
  EXPECT_EQ(StatusOf(chunked + "1;" + std::string(300, 'x')), 400);
}

TEST(HttpMessageTest, RefusesWhatExceedsTheLimitsBeforeItComes) {
  const HttpLimits limits{.head_bytes_max = 200, .headers_max = 3, .body_bytes_max = 10};
  EXPECT_EQ(StatusOf(Headed("Content-Length: 10\r\n"), limits), 100);
  EXPECT_EQ(StatusOf(Headed("Content-Length: 11\r\n"), limits), 413);
  EXPECT_EQ(StatusOf(Headed("Content-Length: 99999999999999999999999\r\n"), limits), 413);
  EXPECT_EQ(StatusOf(Headed("A: 1\r\nB: 2\r\n"), limits), 200);
  EXPECT_EQ(StatusOf(Headed("A: 1\r\nB: 2\r\nC: 3\r\n"), limits), 431);
  EXPECT_EQ(StatusOf(Headed("A: " + std::string(200, 'x') + "\r\n"), limits), 431);
  EXPECT_EQ(StatusOf("GET /" + std::string(300, 'x'), limits), 431);
  const std::string chunked = Headed("Transfer-Encoding: chunked\r\n");
  EXPECT_EQ(StatusOf(chunked + "a\r\n0123456789\r\n0\r\n\r\n", limits), 200);
  EXPECT_EQ(StatusOf(chunked + "a\r\n0123456789\r\n1\r\n", limits), 413);
  EXPECT_EQ(StatusOf(chunked + "ffffffffffffffff\r\n", limits), 413);
  EXPECT_EQ(StatusOf(chunked + "fffffffffffffffff\r\n", limits), 400);
  EXPECT_EQ(StatusOf(chunked + "0\r\nT: " + std::string(300, 'x'), limits), 400);
}

TEST(HttpMessageTest, SaysWhatIsWrong) {
  HttpParser parser({.head_bytes_max = 1000, .headers_max = 10, .body_bytes_max = 10});
  FeedAll(&parser, Headed("Content-Length: 11\r\n"));
  EXPECT_THAT(parser.error(), HasSubstr("longer than 10 bytes"));
  EXPECT_EQ(parser.Feed("more"), 0u);
  EXPECT_EQ(HttpReason(404), "Not Found");
  EXPECT_EQ(HttpReason(299), "Unknown");
}

}  // namespace
}  // namespace ems::fabric
