#include "model_files/source/http_transfer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "common/thread_pool.h"
#include "tests/support/eventually.h"
#include "tests/support/http_script.h"

namespace ems::model {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HttpScript;
using testing::Reply;
using testing::ScriptReply;
using testing::ScriptRequest;

Deadline Soon() { return Deadline::After(seconds(20)); }

// What one exchange with a server that always answers `reply` gives, into `room` bytes.
struct Tried {
  HttpOutcome outcome;
  std::string into;
};
Tried Try(const ScriptReply& reply, size_t room, HttpTransfer::Options options = {},
          Deadline deadline = Soon()) {
  HttpScript server([&](const ScriptRequest&) { return reply; });
  HttpTransfer transfer(options, nullptr);
  Tried tried{.outcome = {}, .into = std::string(room, '.')};
  HttpRequest request{.url = server.origin() + "/x", .text_bytes_max = 10};
  request.into = std::as_writable_bytes(std::span(tried.into));
  tried.outcome = transfer.Do(request, deadline);
  return tried;
}

TEST(HttpTransferTest, TheBodyGoesToTheSpanAndTheHeadIsRead) {
  const Tried tried = Try(Reply(206, {"ETag: \"e\"", "content-range:  bytes 0-4/9 "}, "hello"), 5);
  EXPECT_EQ(tried.outcome.failure, HttpFailure::kNone) << tried.outcome.what;
  EXPECT_EQ(tried.outcome.head.status, 206);
  EXPECT_EQ(tried.outcome.head.etag, "\"e\"");
  EXPECT_EQ(tried.outcome.head.content_range, "bytes 0-4/9");
  EXPECT_EQ(tried.outcome.head.content_bytes, 5U);
  EXPECT_EQ(tried.outcome.body_bytes, 5U);
  EXPECT_EQ(tried.into, "hello");
}

TEST(HttpTransferTest, ABodyLongerThanTheSpanIsAnErrorAndNothingIsWrittenBeyond) {
  const Tried tried = Try(Reply(206, {}, "hello!"), 5);
  EXPECT_EQ(tried.outcome.failure, HttpFailure::kTooLong);
  EXPECT_EQ(tried.into.size(), 5U);
}

TEST(HttpTransferTest, ATextLongerThanAllowedIsAnError) {
  EXPECT_EQ(Try(Reply(200, {}, "0123456789"), 0).outcome.text, "0123456789");
  EXPECT_EQ(Try(Reply(200, {}, "0123456789x"), 0).outcome.failure, HttpFailure::kTooLong);
}

TEST(HttpTransferTest, AnErrorsBodyIsTextAndTheSpanStaysUntouched) {
  const Tried tried = Try(Reply(403, {}, "go away"), 7);
  EXPECT_EQ(tried.outcome.failure, HttpFailure::kNone);
  EXPECT_EQ(tried.outcome.text, "go away");
  EXPECT_EQ(tried.outcome.body_bytes, 0U);
  EXPECT_EQ(tried.into, ".......");
  const Tried lengthy = Try(Reply(500, {}, std::string(100'000, 'x')), 1);
  EXPECT_EQ(lengthy.outcome.text.size(), HttpTransfer::kErrorTextMax);
  EXPECT_EQ(Try(Reply(500, {}, std::string(3'000'000, 'x')), 1).outcome.failure,
            HttpFailure::kTooLong);
}

TEST(HttpTransferTest, WhatComesIsCountedWhileTheRestIsStillToCome) {
  HttpScript server([](const ScriptRequest&) {
    return ScriptReply{.bytes = "HTTP/1.1 206 P\r\nContent-Length: 9\r\n\r\nhell",
                       .end = ScriptReply::End::kHang};
  });
  HttpTransfer transfer({}, nullptr);
  std::string into(9, '.');
  std::atomic<uint64_t> received{0};
  std::atomic<bool> ended{false};
  HttpRequest request{.url = server.origin() + "/x", .received = &received};
  request.into = std::as_writable_bytes(std::span(into));
  Thread reader("reader", [&] {
    (void)transfer.Do(request, Deadline::After(milliseconds(500)));
    ended = true;
  });
  EXPECT_TRUE(ems::testing::Eventually([&] { return received >= 4 || ended; }));
  EXPECT_FALSE(ended);
  EXPECT_EQ(received, 4U);
}

TEST(HttpTransferTest, ACutBodyIsBrokenAndSaysHowMuchCame) {
  const Tried tried = Try(
      {.bytes = "HTTP/1.1 206 P\r\nContent-Length: 9\r\n\r\nhell", .end = ScriptReply::End::kClose},
      9);
  EXPECT_EQ(tried.outcome.failure, HttpFailure::kBroken);
  EXPECT_EQ(tried.outcome.body_bytes, 4U);
  EXPECT_EQ(tried.into, "hell.....");
}

TEST(HttpTransferTest, SilenceIsAStall) {
  const Tried tried = Try(
      {.bytes = "HTTP/1.1 206 P\r\nContent-Length: 9\r\n\r\nhell", .end = ScriptReply::End::kHang},
      9, {.stall_timeout = milliseconds(100)});
  EXPECT_EQ(tried.outcome.failure, HttpFailure::kStalled);
  EXPECT_EQ(tried.outcome.body_bytes, 4U);
}

TEST(HttpTransferTest, TheDeadlineEndsASilentExchange) {
  const Tried tried = Try({.bytes = "HTTP/1.1 206 P\r\n", .end = ScriptReply::End::kHang}, 9, {},
                          Deadline::After(milliseconds(100)));
  EXPECT_EQ(tried.outcome.failure, HttpFailure::kDeadline);
}

TEST(HttpTransferTest, NonsenseIsBroken) {
  for (const std::string& bytes :
       {std::string("hello\r\n\r\n"), std::string(), "HTTP/1.1 200 O\r\n" + [] {
          std::string many;
          for (int i = 0; i < 300; ++i) many += "X-" + std::to_string(i) + ": y\r\n";
          return many;
        }() + "\r\n"}) {
    const Tried tried = Try({.bytes = bytes, .end = ScriptReply::End::kClose}, 9);
    EXPECT_EQ(tried.outcome.failure, HttpFailure::kBroken) << bytes.substr(0, 40);
  }
}

// libcurl calls it a bad argument, as if it were this side's fault.
TEST(HttpTransferTest, AHeaderLineWithoutAColonIsBroken) {
  const Tried tried = Try({.bytes = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nnonsense\r\n\r\nok",
                           .end = ScriptReply::End::kClose},
                          9);
  EXPECT_EQ(tried.outcome.failure, HttpFailure::kBroken) << tried.outcome.what;
}

TEST(HttpTransferTest, NobodyListeningIsNoConnection) {
  uint16_t port = 0;
  {
    HttpScript gone([](const ScriptRequest&) { return Reply(200, {}, ""); });
    port = gone.port();
  }
  HttpTransfer transfer({}, nullptr);
  const HttpOutcome outcome =
      transfer.Do({.url = "http://127.0.0.1:" + std::to_string(port) + "/"}, Soon());
  EXPECT_EQ(outcome.failure, HttpFailure::kConnect);
  EXPECT_FALSE(outcome.what.empty());
}

TEST(HttpTransferTest, ANameThatIsNotKnownIsNoConnectionEachTime) {
  HttpTransfer transfer({}, nullptr);
  for (int i = 0; i < 3; ++i) {
    const HttpOutcome outcome = transfer.Do({.url = "http://no..name/"}, Soon());  // no DNS for it
    EXPECT_EQ(outcome.failure, HttpFailure::kConnect) << outcome.what;
  }
}

TEST(HttpTransferTest, OtherProtocolsAreNotSpoken) {
  HttpTransfer transfer({}, nullptr);
  for (const std::string url : {"file:///etc/passwd", "ftp://127.0.0.1/"}) {
    const HttpOutcome outcome = transfer.Do({.url = url, .text_bytes_max = 10'000}, Soon());
    EXPECT_NE(outcome.failure, HttpFailure::kNone) << url;
    EXPECT_EQ(outcome.text, "") << url;
  }
}

TEST(HttpTransferTest, AcceptIsAskedOnceAndItsRefusalEndsTheExchange) {
  HttpScript server([](const ScriptRequest& request) {
    return Reply(request.target == "/e" ? 206 : 200, {}, request.target == "/e" ? "" : "hello");
  });
  HttpTransfer transfer({}, nullptr);
  std::string into(5, '.');
  int asked = 0;
  HttpRequest request{.url = server.origin() + "/x"};
  request.into = std::as_writable_bytes(std::span(into));
  request.accept = [&](const HttpHead& head) {
    ++asked;
    return head.status == 200 ? Error(StatusCode::kDataLoss, "no") : OkStatus();
  };
  HttpOutcome outcome = transfer.Do(request, Soon());
  EXPECT_EQ(outcome.failure, HttpFailure::kRefused);
  EXPECT_EQ(outcome.refused.code(), StatusCode::kDataLoss);
  EXPECT_EQ(into, ".....");
  request.url = server.origin() + "/e";  // without a body it is asked as well
  outcome = transfer.Do(request, Soon());
  EXPECT_EQ(outcome.failure, HttpFailure::kNone);
  EXPECT_EQ(asked, 2);
}

TEST(HttpTransferTest, OneConnectionServesRequestAfterRequest) {
  HttpScript server([](const ScriptRequest&) { return Reply(200, {}, "x"); });
  HttpTransfer transfer({}, nullptr);
  for (int i = 0; i < 5; ++i) {
    const HttpOutcome outcome =
        transfer.Do({.url = server.origin() + "/", .text_bytes_max = 1}, Soon());
    EXPECT_EQ(outcome.text, "x");
  }
  EXPECT_EQ(server.requests().back().connection, 1U);
}

// libcurl 7.88 appended it to a header line of the exchange before, in memory that it had freed.
TEST(HttpTransferTest, AFoldedFirstHeaderLineIsNoPartOfTheExchangeBefore) {
  HttpScript server([](const ScriptRequest& request) {
    if (request.target == "/first") return Reply(200, {"X-Last: line"}, "x");
    return ScriptReply{.bytes = "HTTP/1.1 200 OK\r\n folded\r\nContent-Length: 1\r\n\r\ny"};
  });
  HttpTransfer transfer({}, nullptr);
  for (const char* path : {"/first", "/second", "/first"})
    (void)transfer.Do({.url = server.origin() + path, .text_bytes_max = 1}, Soon());
  EXPECT_EQ(server.requests().size(), 3U);
}

TEST(HttpTransferTest, TheHeadersThatWereSetOnceAreNotSentTwice) {
  HttpScript server([](const ScriptRequest&) { return Reply(200, {}, ""); });
  HttpTransfer transfer({}, nullptr);
  (void)transfer.Do({.url = server.origin() + "/", .headers = {"Authorization: Bearer t"}}, Soon());
  (void)transfer.Do({.url = server.origin() + "/"}, Soon());
  EXPECT_EQ(server.requests()[0].Header("authorization"), "Bearer t");
  EXPECT_EQ(server.requests()[1].Header("authorization"), "");
}

TEST(HttpTransferTest, ConnectionsAreBoundedAndCallsWaitForOne) {
  std::atomic<int> at_once{0};
  std::atomic<int> most{0};
  HttpScript server([&](const ScriptRequest&) {
    const int now = at_once.fetch_add(1) + 1;
    int seen = most.load();
    while (now > seen && !most.compare_exchange_weak(seen, now)) {
    }
    at_once.fetch_sub(1);
    return Reply(200, {}, "x");
  });
  HttpTransfer transfer({.connections_max = 2}, nullptr);
  std::atomic<int> good{0};
  {
    std::vector<Thread> threads;
    threads.reserve(8);
    for (int i = 0; i < 8; ++i) {
      threads.emplace_back("caller", [&] {
        for (int j = 0; j < 20; ++j) {
          const HttpOutcome outcome =
              transfer.Do({.url = server.origin() + "/", .text_bytes_max = 1}, Soon());
          good += outcome.text == "x" ? 1 : 0;
        }
      });
    }
  }
  EXPECT_EQ(good.load(), 160);
  EXPECT_LE(most.load(), 2);
  for (const ScriptRequest& request : server.requests()) EXPECT_LE(request.connection, 2U);
}

TEST(HttpTransferTest, ACallThatFindsNoConnectionFreeEndsAtItsDeadline) {
  StopFlag release;
  HttpScript server([&](const ScriptRequest&) {
    release.WaitFor(std::chrono::seconds(20));
    return Reply(200, {}, "x");
  });
  HttpTransfer transfer({.connections_max = 1}, nullptr);
  std::string text;
  Thread holder("holder", [&] {
    text = transfer.Do({.url = server.origin() + "/", .text_bytes_max = 1}, Soon()).text;
  });
  const Deadline started = Soon();
  while (server.requests().empty()) ASSERT_FALSE(started.Passed());
  const HttpOutcome outcome =
      transfer.Do({.url = server.origin() + "/"}, Deadline::After(milliseconds(20)));
  EXPECT_EQ(outcome.failure, HttpFailure::kDeadline);
  EXPECT_EQ(server.requests().size(), 1U);
  release.Set();
  holder.Join();
  EXPECT_EQ(text, "x");  // who had the connection was not disturbed
}

TEST(HttpTransferTest, TheCapSlowsABodyDownAndAllOfItArrives) {
  const std::string body(400'000, 'b');
  HttpScript server([&](const ScriptRequest&) { return Reply(206, {}, body); });
  BandwidthCap cap(1'000'000);
  // A pause is no stall.
  HttpTransfer transfer({.stall_timeout = milliseconds(30)}, &cap);
  std::string into(body.size(), '.');
  HttpRequest request{.url = server.origin() + "/"};
  request.into = std::as_writable_bytes(std::span(into));
  const TimePoint begin = Clock::System().Now();
  const HttpOutcome outcome = transfer.Do(request, Soon());
  EXPECT_EQ(outcome.failure, HttpFailure::kNone) << outcome.what;
  EXPECT_EQ(into, body);
  // 400 kB at 1 MB/s, less the burst and the last piece.
  EXPECT_GE(Clock::System().Now() - begin, milliseconds(300));
}

TEST(HttpTransferTest, TheDeadlineHoldsWhileTheCapMakesItWait) {
  HttpScript server(
      [&](const ScriptRequest&) { return Reply(206, {}, std::string(400'000, 'b')); });
  BandwidthCap cap(1000);
  HttpTransfer transfer({}, &cap);
  std::string into(400'000, '.');
  HttpRequest request{.url = server.origin() + "/"};
  request.into = std::as_writable_bytes(std::span(into));
  EXPECT_EQ(transfer.Do(request, Deadline::After(milliseconds(100))).failure,
            HttpFailure::kDeadline);
}

}  // namespace
}  // namespace ems::model
