#include "model_files/source/http_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "common/thread_pool.h"
#include "tests/support/http_script.h"

namespace ems::model {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::HttpScript;
using ::testing::Not;
using testing::Reply;
using testing::ScriptReply;
using testing::ScriptRequest;

constexpr std::string_view kBody = "0123456789abcdefghij";
constexpr std::string_view kTag = "\"v1\"";

Deadline Soon() { return Deadline::After(std::chrono::seconds(20)); }

// What a proper server answers.
ScriptReply Range(const ScriptRequest& request, std::string_view tag = kTag) {
  const auto [first, last] = request.Range();
  return Reply(206,
               {fmt::format("ETag: {}", tag),
                fmt::format("Content-Range: bytes {}-{}/{}", first, last, kBody.size())},
               std::string(kBody.substr(first, last - first + 1)));
}

// Reads bytes 5 to 14 of kBody from a scripted server.
class HttpReaderTest : public ::testing::Test {
 protected:
  Status Read(const HttpScript::Handler& handler, Deadline deadline = Soon()) {
    HttpScript server(handler);
    spec_.retry_delay = milliseconds(1);
    const HttpUrl url = *ParseHttpUrl(server.origin() + "/m/w");
    HttpReader reader(spec_, url, [this](std::string_view, const HttpUrl&) {
      return std::vector<std::string>{"Authorization: Bearer " + spec_.credentials.bearer_token};
    });
    into_.assign(10, '.');
    const Result<bool> compared =
        reader.ReadRange(url, {.bytes = kBody.size(), .tag = tag_}, 5,
                         std::as_writable_bytes(std::span(into_)), deadline);
    const Status& status = compared.status();
    compared_ = compared.value_or(false);
    counters_ = reader.counters();
    requests_ = server.requests();
    EXPECT_THAT(std::string(Message(status)), Not(HasSubstr("hunter2")));
    return status;
  }
  void ExpectFails(StatusCode code, std::string_view text, const HttpScript::Handler& handler) {
    const Status status = Read(handler);
    EXPECT_EQ(status.code(), code) << ToString(status);
    EXPECT_THAT(std::string(Message(status)), HasSubstr(std::string(text)));
    const size_t looks = code == StatusCode::kFailedPrecondition ? 2 : 1;
    EXPECT_EQ(requests_.size(), looks) << "but for a second look at a tag it is not tried again";
  }

  SourceSpec spec_{.credentials = {.bearer_token = "hunter2"}, .retries_max = 3};
  std::string tag_{kTag};
  std::string into_;
  bool compared_ = false;
  SourceCounters counters_;
  std::vector<ScriptRequest> requests_;
};

// Of "56789abcde", what Read asks for.
constexpr const char* kContentDigest =
    "Content-Digest: sha-256=:+68jaMCcSZhI0qLwAHuzX7rJccWNxYtfp4B0n7OuV/g=:";

TEST_F(HttpReaderTest, ABodyThatIsNotWhatItsDigestSaysIsReadAgain) {
  int tries = 0;
  const Status status = Read([&](const ScriptRequest& request) {
    ScriptReply reply = Range(request);
    reply.bytes.insert(reply.bytes.find("\r\n") + 2, std::string(kContentDigest) + "\r\n");
    if (++tries < 3) reply.bytes.back() ^= 1;
    return reply;
  });
  EXPECT_EQ(status, OkStatus());
  EXPECT_EQ(tries, 3);
  EXPECT_EQ(into_, "56789abcde");
  EXPECT_TRUE(compared_);
}

TEST_F(HttpReaderTest, ABodyWithADigestThatBreaksOffIsReadFromItsBeginning) {
  int tries = 0;
  const Status status = Read([&](const ScriptRequest& request) {
    EXPECT_EQ(request.Range().first, 5U);
    ScriptReply reply = Range(request);
    reply.bytes.insert(reply.bytes.find("\r\n") + 2, std::string(kContentDigest) + "\r\n");
    if (++tries > 1) return reply;
    reply.bytes.resize(reply.bytes.size() - 3);
    reply.end = ScriptReply::End::kClose;
    return reply;
  });
  EXPECT_EQ(status, OkStatus());
  EXPECT_EQ(into_, "56789abcde");
}

TEST_F(HttpReaderTest, ABodyThatIsDamagedInAllTriesIsAnError) {
  spec_.retries_max = 2;
  const Status status = Read([&](const ScriptRequest& request) {
    ScriptReply reply = Range(request);
    reply.bytes.insert(reply.bytes.find("\r\n") + 2, std::string(kContentDigest) + "\r\n");
    reply.bytes.back() ^= 1;
    return reply;
  });
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(std::string(Message(status)), AllOf(HasSubstr("Content-Digest"), HasSubstr("/m/w")));
  EXPECT_EQ(requests_.size(), 3U);
}

// Reads an object of 3 bytes whose tag is the MD5 of "abc"; `bodies` are what the tries get.
Result<bool> ReadObject(const std::vector<std::string>& bodies, std::string* got) {
  constexpr const char* kMd5 = "\"900150983cd24fb0d6963f7d28e17f72\"";
  std::atomic<size_t> next{0};
  HttpScript server([&](const ScriptRequest&) {
    return Reply(206, {fmt::format("ETag: {}", kMd5), "Content-Range: bytes 0-2/3"},
                 bodies[std::min(next++, bodies.size() - 1)]);
  });
  SourceSpec spec;
  spec.retry_delay = milliseconds(1);
  const HttpUrl url = *ParseHttpUrl(server.origin() + "/b/o");
  HttpReader reader(spec, url, nullptr);
  got->assign(3, '.');
  const Result<bool> read = reader.ReadRange(url, {.bytes = 3, .tag = kMd5, .md5_tag = true}, 0,
                                             std::as_writable_bytes(std::span(*got)), Soon());
  EXPECT_EQ(reader.counters().requests, bodies.size());
  return read;
}

TEST(HttpReaderObjectTest, BytesOfAnotherMd5ThanTheTagAreReadAgain) {
  std::string got;
  EXPECT_TRUE(ReadObject({"abd", "bbc", "abc"}, &got).value()) << "compared";
  EXPECT_EQ(got, "abc");
}

TEST(HttpReaderObjectTest, ATagThatIsNoMd5IsFoundOutByReadingTwice) {
  std::string got;
  EXPECT_FALSE(ReadObject({"xyz", "xyz"}, &got).value()) << "not compared with a checksum";
  EXPECT_EQ(got, "xyz");
}

TEST_F(HttpReaderTest, ReadsARangeOfTheTaggedFile) {
  ASSERT_TRUE(Read([](const ScriptRequest& request) { return Range(request); }).ok());
  EXPECT_EQ(into_, kBody.substr(5, 10));
  EXPECT_FALSE(compared_) << "the server gives no checksum";
  EXPECT_EQ(requests_[0].Header("range"), "bytes=5-14");
  EXPECT_EQ(requests_[0].Header("if-match"), kTag);
  EXPECT_EQ(counters_.bytes_read, 10U);
  EXPECT_EQ(counters_.requests, 1U);
  EXPECT_EQ(counters_.retries, 0U);
}

TEST_F(HttpReaderTest, FailuresThatPassAreTriedAgain) {
  for (const int status : {408, 429, 500, 502, 503, 504}) {
    std::atomic<int> count{0};
    ASSERT_TRUE(Read([&](const ScriptRequest& request) {
                  return count++ < 2 ? Reply(status, {}, "busy") : Range(request);
                }).ok())
        << status;
    EXPECT_EQ(into_, kBody.substr(5, 10));
    EXPECT_EQ(counters_.retries, 2U);
    EXPECT_EQ(counters_.bytes_read, 10U);
  }
}

TEST_F(HttpReaderTest, TriesAreBoundedAndTheErrorSaysWhereAndWhat) {
  const Status status = Read([](const ScriptRequest&) {
    return Reply(503, {}, "<Error><Code>SlowDown</Code><Message>hunter2 calm</Message></Error>");
  });
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(std::string(Message(status)),
              AllOf(HasSubstr("/m/w at offset 5"), HasSubstr("HTTP 503"), HasSubstr("SlowDown"),
                    HasSubstr("*** calm"), HasSubstr("tried 4 times")));
  EXPECT_EQ(requests_.size(), 4U);
  EXPECT_EQ(counters_.retries, 3U);
}

TEST_F(HttpReaderTest, ACutBodyIsTakenUpWhereItStopped) {
  std::atomic<int> count{0};
  ASSERT_TRUE(Read([&](const ScriptRequest& request) {
                ScriptReply reply = Range(request);
                if (count++ < 2) {
                  reply.bytes.resize(reply.bytes.find("\r\n\r\n") + 4 + 3);
                  reply.end = ScriptReply::End::kClose;
                }
                return reply;
              }).ok());
  EXPECT_EQ(into_, kBody.substr(5, 10));
  EXPECT_EQ(requests_[1].Header("range"), "bytes=8-14");
  EXPECT_EQ(requests_[2].Header("range"), "bytes=11-14");
  EXPECT_EQ(counters_.bytes_read, 10U);  // each byte once
  EXPECT_EQ(counters_.retries, 2U);
}

TEST_F(HttpReaderTest, ABodyThatEndsEarlyWithoutALengthIsTakenUp) {
  std::atomic<int> count{0};
  ASSERT_TRUE(Read([&](const ScriptRequest& request) {
                if (count++ > 0) return Range(request);
                return ScriptReply{.bytes =
                                       "HTTP/1.1 206 P\r\nETag: \"v1\"\r\n"
                                       "Content-Range: bytes 5-14/20\r\n\r\n567",
                                   .end = ScriptReply::End::kClose};
              }).ok());
  EXPECT_EQ(into_, kBody.substr(5, 10));
}

TEST_F(HttpReaderTest, AChangeBetweenTriesIsNoticed) {
  std::atomic<int> count{0};
  const Status status = Read([&](const ScriptRequest& request) {
    if (count++ > 0) return Range(request, "\"v2\"");
    ScriptReply reply = Range(request);
    reply.bytes.resize(reply.bytes.size() - 4);
    reply.end = ScriptReply::End::kClose;
    return reply;
  });
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition) << ToString(status);
}

TEST_F(HttpReaderTest, AStallIsTriedAgainAndThenADeadline) {
  spec_.stall_timeout = milliseconds(50);
  std::atomic<int> count{0};
  const auto hang = [](const ScriptRequest& request) {
    ScriptReply reply = Range(request);
    reply.bytes.resize(reply.bytes.size() - 4);
    reply.end = ScriptReply::End::kHang;
    return reply;
  };
  ASSERT_TRUE(Read([&](const ScriptRequest& request) {
                return count++ == 0 ? hang(request) : Range(request);
              }).ok());
  EXPECT_EQ(into_, kBody.substr(5, 10));
  EXPECT_EQ(requests_[1].Header("range"), "bytes=11-14");
  const Status status = Read([](const ScriptRequest&) {
    return ScriptReply{.bytes = "", .end = ScriptReply::End::kHang};
  });
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(Message(status)), HasSubstr("stalled"));
}

TEST_F(HttpReaderTest, StoppingEndsASilentAnswerAndAWaitBetweenTries) {
  for (const bool silent : {true, false}) {
    spec_.stop = std::make_shared<StopFlag>();
    const auto handler = [&](const ScriptRequest&) {
      spec_.stop->Set();
      return silent ? ScriptReply{.bytes = "", .end = ScriptReply::End::kHang}
                    : Reply(503, {"Retry-After: 3"}, "");
    };
    const TimePoint begin = Clock::System().Now();
    EXPECT_EQ(Read(handler).code(), StatusCode::kCancelled) << silent;
    EXPECT_LT(Clock::System().Now() - begin, std::chrono::seconds(10)) << silent;
  }
}

TEST_F(HttpReaderTest, TheDeadlineEndsItBetweenTries) {
  const Status status =
      Read([](const ScriptRequest&) { return Reply(503, {"Retry-After: 50"}, ""); },
           Deadline::After(std::chrono::seconds(10)));
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(Message(status)), HasSubstr("HTTP 503"));
  EXPECT_EQ(requests_.size(), 1U);
}

TEST_F(HttpReaderTest, AnswersThatTriesDoNotHelpHaveTheirCodes) {
  const std::pair<int, StatusCode> cases[] = {{401, StatusCode::kUnauthenticated},
                                              {403, StatusCode::kPermissionDenied},
                                              {404, StatusCode::kNotFound},
                                              {410, StatusCode::kNotFound},
                                              {412, StatusCode::kFailedPrecondition},
                                              {416, StatusCode::kFailedPrecondition},
                                              {400, StatusCode::kInvalidArgument},
                                              {304, StatusCode::kInvalidArgument},
                                              {204, StatusCode::kDataLoss}};
  for (const auto& [status, code] : cases) {
    ExpectFails(code, "HTTP " + std::to_string(status),
                [&, number = status](const ScriptRequest&) { return Reply(number, {}, ""); });
  }
  ExpectFails(StatusCode::kUnauthenticated, "SignatureDoesNotMatch: key", [](const ScriptRequest&) {
    return Reply(403, {},
                 "<Error><Code>SignatureDoesNotMatch</Code><Message>key</Message></Error>");
  });
  ExpectFails(StatusCode::kFailedPrecondition, "the source changed",
              [](const ScriptRequest&) { return Reply(412, {}, ""); });
}

TEST_F(HttpReaderTest, AnErrorWhoseTextDoesNotEndIsStillThatError) {
  ExpectFails(StatusCode::kNotFound, "HTTP 404", [](const ScriptRequest&) {
    return ScriptReply{.bytes = "HTTP/1.1 404 N\r\nContent-Length: 100\r\n\r\nsorry",
                       .end = ScriptReply::End::kClose};
  });
  ExpectFails(StatusCode::kNotFound, "HTTP 404",
              [](const ScriptRequest&) { return Reply(404, {}, std::string(3'000'000, 'x')); });
}

TEST_F(HttpReaderTest, AServerThatIgnoresRangesIsNamed) {
  ExpectFails(StatusCode::kInvalidArgument, "ignores ranges", [](const ScriptRequest&) {
    return Reply(200, {"ETag: \"v1\""}, std::string(kBody));
  });
}

TEST_F(HttpReaderTest, ATagThatWasDamagedOnceIsNoChange) {
  int tries = 0;
  const Status status = Read([&](const ScriptRequest& request) {
    return ++tries == 1 ? Range(request, "\"w1\"") : Range(request);
  });
  EXPECT_EQ(status, OkStatus());
  EXPECT_EQ(into_, "56789abcde");
}

TEST_F(HttpReaderTest, ASourceThatRefusesEveryOtherRequestIsReadSlowlyToItsEnd) {
  std::atomic<int> requests{0};
  HttpScript server([&](const ScriptRequest& request) {
    return ++requests % 2 == 1 ? Reply(503, {}, "slow down") : Range(request);
  });
  spec_.retry_delay = std::chrono::microseconds(50);
  const HttpUrl url = *ParseHttpUrl(server.origin() + "/m/w");
  HttpReader reader(spec_, url, nullptr);
  into_.assign(10, '.');
  for (int i = 0; i < 200; ++i) {
    const auto read = reader.ReadRange(url, {.bytes = kBody.size(), .tag = tag_}, 5,
                                       std::as_writable_bytes(std::span(into_)), Soon());
    ASSERT_TRUE(read.ok()) << read.status() << " at " << i;
  }
  EXPECT_EQ(reader.counters().retries, 200U) << "twice what the budget has";
}

TEST_F(HttpReaderTest, ChangedTagsAndSizesFailThePrecondition) {
  ExpectFails(StatusCode::kFailedPrecondition, "the source changed",
              [](const ScriptRequest& request) { return Range(request, "\"v2\""); });
  ExpectFails(StatusCode::kFailedPrecondition, "the source changed", [](const ScriptRequest&) {
    return Reply(206, {"ETag: \"v1\"", "Content-Range: bytes 5-14/21"}, std::string(10, 'x'));
  });
  ExpectFails(StatusCode::kFailedPrecondition, "the source changed", [](const ScriptRequest&) {
    return Reply(206, {"Content-Range: bytes 5-14/20"}, std::string(10, 'x'));  // no tag at all
  });
}

TEST_F(HttpReaderTest, WrongRangesAndLengthsAreDataLoss) {
  for (const std::string_view range :
       {"bytes 4-13/20", "bytes 5-15/20", "bytes 5-13/20", "5-14/20", "bytes 5-14", "bytes */20",
        "bytes 5-14/x", "", "bytes 99999999999999999999-14/20"}) {
    ExpectFails(StatusCode::kDataLoss, "", [&](const ScriptRequest&) {
      return Reply(206, {"ETag: \"v1\"", fmt::format("Content-Range: {}", range)},
                   std::string(10, 'x'));
    });
    EXPECT_EQ(into_, "..........") << range;
  }
  ExpectFails(StatusCode::kDataLoss, "a body of 11 bytes", [](const ScriptRequest&) {
    return Reply(206, {"ETag: \"v1\"", "Content-Range: bytes 5-14/20"}, std::string(11, 'x'));
  });
  ExpectFails(StatusCode::kDataLoss, "longer than what was asked for", [](const ScriptRequest&) {
    return ScriptReply{.bytes =
                           "HTTP/1.1 206 P\r\nETag: \"v1\"\r\nTransfer-Encoding: chunked\r\n"
                           "Content-Range: bytes 5-14/20\r\n\r\nb\r\nxxxxxxxxxxx\r\n0\r\n\r\n",
                       .end = ScriptReply::End::kKeepOpen};
  });
}

TEST_F(HttpReaderTest, AnEncodedBodyIsRefused) {
  ExpectFails(StatusCode::kInvalidArgument, "gzip", [](const ScriptRequest&) {
    return Reply(206, {"ETag: \"v1\"", "Content-Encoding: gzip", "Content-Range: bytes 5-14/20"},
                 std::string(10, 'x'));
  });
}

TEST_F(HttpReaderTest, WeakTagsAndDatesAreComparedButNotSentAsConditions) {
  tag_ = "W/\"v1\"";
  ASSERT_TRUE(Read([&](const ScriptRequest& request) { return Range(request, tag_); }).ok());
  EXPECT_EQ(requests_[0].Header("if-match"), "");
  tag_ = "last-modified:yesterday";
  const auto dated = [](const ScriptRequest&, std::string_view date) {
    return Reply(206, {fmt::format("Last-Modified: {}", date), "Content-Range: bytes 5-14/20"},
                 std::string(10, 'x'));
  };
  EXPECT_TRUE(Read([&](const ScriptRequest& request) { return dated(request, "yesterday"); }).ok());
  EXPECT_EQ(Read([&](const ScriptRequest& request) { return dated(request, "today"); }).code(),
            StatusCode::kFailedPrecondition);
}

TEST_F(HttpReaderTest, RedirectionsAreFollowedAndCredentialsStayHome) {
  HttpScript elsewhere([](const ScriptRequest& request) { return Range(request); });
  ASSERT_TRUE(Read([&](const ScriptRequest& request) {
                if (request.target == "/m/w") return Reply(302, {"Location: /here"}, "");
                return Reply(307, {"Location: " + elsewhere.origin() + "/there?sig=s"}, "");
              }).ok());
  EXPECT_EQ(into_, kBody.substr(5, 10));
  EXPECT_EQ(requests_[1].target, "/here");
  EXPECT_EQ(requests_[1].Header("authorization"), "Bearer hunter2");
  const ScriptRequest last = elsewhere.requests().at(0);
  EXPECT_EQ(last.target, "/there?sig=s");
  EXPECT_EQ(last.Header("authorization"), "");
  EXPECT_EQ(last.Header("range"), "bytes=5-14");
  EXPECT_EQ(last.Header("if-match"), kTag);
}

TEST_F(HttpReaderTest, RedirectionsAreBounded) {
  const Status status =
      Read([](const ScriptRequest&) { return Reply(302, {"Location: /again"}, ""); });
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(Message(status)), HasSubstr("too many redirections"));
  EXPECT_EQ(requests_.size(), HttpReader::kRedirectsMax + 1U);
}

TEST_F(HttpReaderTest, RedirectionsToOtherProtocolsAreRefused) {
  for (const std::string_view target : {"file:///etc/passwd", "ftp://h/", "http://u:p@h/"}) {
    ExpectFails(StatusCode::kInvalidArgument, "not followed", [&](const ScriptRequest&) {
      return Reply(302, {fmt::format("Location: {}", target)}, "");
    });
  }
}

TEST_F(HttpReaderTest, ErrorsAtTheEndOfARedirectionDoNotShowItsQuery) {
  HttpScript elsewhere([](const ScriptRequest&) { return Reply(404, {}, ""); });
  const Status status = Read([&](const ScriptRequest&) {
    return Reply(302, {"Location: " + elsewhere.origin() + "/there?sig=s3cret"}, "");
  });
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_THAT(std::string(Message(status)), AllOf(HasSubstr("/there"), Not(HasSubstr("s3cret"))));
}

TEST(HttpReaderTextTest, TextsAndHeadsAreReadWithTheirBounds) {
  HttpScript server([](const ScriptRequest& request) {
    if (request.target == "/none") return Reply(404, {}, "");
    if (request.target == "/length") {
      return ScriptReply{.bytes = "HTTP/1.1 200 O\r\n\r\n", .end = ScriptReply::End::kClose};
    }
    return Reply(200, {"ETag: \"t\"", "Last-Modified: x"}, "text");
  });
  HttpReader reader({.retries_max = 0}, *ParseHttpUrl(server.origin()), nullptr);
  const auto at = [&](const std::string& path) { return *ParseHttpUrl(server.origin() + path); };
  EXPECT_EQ(*reader.Text(at("/a"), 4, Soon()), "text");
  EXPECT_EQ(reader.Text(at("/a"), 3, Soon()).status().code(), StatusCode::kDataLoss);
  EXPECT_EQ(reader.Text(at("/none"), 9, Soon()).status().code(), StatusCode::kNotFound);
  const Result<RemoteFile> file = reader.Stat(at("/a"), Soon());
  ASSERT_TRUE(file.ok()) << ToString(file.status());
  EXPECT_EQ(file->bytes, 4U);
  EXPECT_EQ(file->tag, "\"t\"");
  EXPECT_EQ(reader.Stat(at("/length"), Soon()).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(reader.Stat(at("/none"), Soon()).status().code(), StatusCode::kNotFound);
}

TEST(HttpReaderTextTest, TheWholeFileMayComeAsA200) {
  HttpHead head;
  head.status = 200;
  head.etag = "\"t\"";
  head.content_bytes = 4;
  EXPECT_TRUE(CheckRangeHead(head, {.bytes = 4, .tag = "\"t\""}, 0, 4).ok());
  EXPECT_EQ(CheckRangeHead(head, {.bytes = 4, .tag = "\"t\""}, 0, 3).code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(CheckRangeHead(head, {.bytes = 5, .tag = "\"t\""}, 0, 5).code(),
            StatusCode::kFailedPrecondition);
}

TEST(HttpReaderTextTest, TagsAreEntityTagsElseDatesElseSizes) {
  HttpHead head;
  EXPECT_EQ(TagOf(head, 7), "size:7");
  head.last_modified = "Mon";
  EXPECT_EQ(TagOf(head, 7), "last-modified:Mon");
  head.etag = "\"e\"";
  EXPECT_EQ(TagOf(head, 7), "\"e\"");
}

}  // namespace
}  // namespace ems::model
