#include "model_files/source/s3_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "model_files/source/open_source.h"
#include "tests/support/http_script.h"

namespace ems::model {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::HttpScript;
using ::testing::Not;
using testing::Reply;
using testing::ScriptReply;
using testing::ScriptRequest;
using ::testing::StartsWith;

Deadline Soon() { return Deadline::After(std::chrono::seconds(20)); }

ScriptReply Page(const std::vector<std::string>& keys, const std::string& token) {
  std::string xml = "<ListBucketResult>";
  for (const std::string& key : keys) {
    xml += "<Contents><Key>" + key + "</Key><Size>3</Size><ETag>&quot;e&quot;</ETag></Contents>";
  }
  xml += token.empty() ? "<IsTruncated>false</IsTruncated>"
                       : "<IsTruncated>true</IsTruncated><NextContinuationToken>" + token +
                             "</NextContinuationToken>";
  return Reply(200, {}, xml + "</ListBucketResult>");
}

Result<std::vector<SourceFile>> ListOf(const HttpScript::Handler& handler) {
  HttpScript server(handler);
  return (*OpenSource({.url = "s3://bucket/m?endpoint=" + server.origin(), .retries_max = 0}))
      ->List(Soon());
}

TEST(S3SourceTest, GoesThroughThePages) {
  std::vector<std::string> targets;
  std::atomic<int> page{0};
  const auto files = ListOf([&](const ScriptRequest& request) {
    targets.push_back(request.target);
    return page++ == 0 ? Page({"m/b &amp; c", "m/", "m/sub/"}, "a+/b=") : Page({"m/a"}, "");
  });
  ASSERT_TRUE(files.ok()) << ToString(files.status());
  ASSERT_EQ(files->size(), 2U);  // sorted, markers of folders left out
  EXPECT_EQ((*files)[0].path, "a");
  EXPECT_EQ((*files)[1].path, "b & c");
  EXPECT_EQ((*files)[1].tag, "\"e\"");
  EXPECT_THAT(targets,
              ElementsAre("/bucket?list-type=2&prefix=m%2F",
                          "/bucket?continuation-token=a%2B%2Fb%3D&list-type=2&prefix=m%2F"));
}

TEST(S3SourceTest, ListingsThatDoNotAddUpAreErrors) {
  const auto code_of = [](const HttpScript::Handler& handler) {
    return ListOf(handler).status().code();
  };
  EXPECT_EQ(code_of([](const ScriptRequest&) { return Page({}, ""); }), StatusCode::kNotFound);
  EXPECT_EQ(code_of([](const ScriptRequest&) { return Page({"m/a"}, "same"); }),
            StatusCode::kDataLoss);
  EXPECT_EQ(code_of([](const ScriptRequest&) { return Page({"other/a"}, ""); }),
            StatusCode::kDataLoss);
  EXPECT_EQ(code_of([](const ScriptRequest&) {
              return Page({"m/a", "m/a"}, "");
            }),
            StatusCode::kDataLoss);
  EXPECT_EQ(code_of([](const ScriptRequest&) { return Page({"m/../a"}, ""); }),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(code_of([](const ScriptRequest&) { return Page({"m//a"}, ""); }),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(code_of([](const ScriptRequest&) { return Reply(200, {}, "<html></html>"); }),
            StatusCode::kDataLoss);
  EXPECT_EQ(code_of([](const ScriptRequest&) {
              return Reply(404, {}, "<Error><Code>NoSuchBucket</Code></Error>");
            }),
            StatusCode::kNotFound);
}

TEST(S3SourceTest, ReadsAreSignedWithKeysAndBareWithout) {
  HttpScript server([](const ScriptRequest& request) {
    const auto [first, last] = request.Range();
    return Reply(206, {"ETag: \"e\"", fmt::format("Content-Range: bytes {}-{}/3", first, last)},
                 std::string("abc").substr(first, last - first + 1));
  });
  SourceSpec spec{.url = "s3://bucket/m?region=r1&endpoint=" + server.origin()};
  const SourceFile file{.path = "x/y z", .bytes = 3, .tag = "\"e\""};
  std::string text(2, '.');
  const MutableBytes into = std::as_writable_bytes(std::span(text));
  ASSERT_TRUE((*OpenSource(spec))->Read(file, 1, into, Soon()).ok());
  EXPECT_EQ(text, "bc");
  spec.credentials = {.access_key = "AK", .secret_key = "hunter2", .session_token = "ST"};
  ASSERT_TRUE((*OpenSource(spec))->Read(file, 1, into, Soon()).ok());

  const std::vector<ScriptRequest> requests = server.requests();
  EXPECT_EQ(requests[0].target, "/bucket/m/x/y%20z");
  EXPECT_EQ(requests[0].Header("authorization"), "");
  EXPECT_THAT(requests[1].Header("authorization"), StartsWith("AWS4-HMAC-SHA256 Credential=AK/"));
  EXPECT_THAT(requests[1].Header("authorization"),
              HasSubstr("/r1/s3/aws4_request, SignedHeaders=host;x-amz-content-sha256;x-amz-date;"
                        "x-amz-security-token, "));
  EXPECT_EQ(requests[1].Header("x-amz-security-token"), "ST");
  for (const auto& [name, value] : requests[1].headers)
    EXPECT_THAT(value, Not(HasSubstr("hunter2")));
}

// Every small file of a store with other tags was read twice at each read, until too many retries
// failed the job.
TEST(S3SourceTest, ATagIsComparedOnlyWhereItIsBelievedToBeAnMd5) {
  const std::string tag = "\"900150983cd24fb0d6963f7d28e17f72\"";  // of "abc"
  HttpScript server([&](const ScriptRequest&) {
    return Reply(206, {"ETag: " + tag, "Content-Range: bytes 0-2/3"}, "xyz");
  });
  SourceSpec spec{.url = "s3://bucket/m?endpoint=" + server.origin()};
  spec.retry_delay = std::chrono::milliseconds(1);
  std::string text(3, '.');
  const MutableBytes into = std::as_writable_bytes(std::span(text));
  const auto source = *OpenSource(spec);
  SourceFile file{.path = "a", .bytes = 3, .tag = tag};
  const Result<bool> once = source->ReadCompared(file, 0, into, Soon());
  ASSERT_TRUE(once.ok()) << once.status();
  EXPECT_FALSE(*once);
  EXPECT_EQ(server.requests().size(), 1U);
  file.md5_tag = true;
  const Result<bool> again = source->ReadCompared(file, 0, into, Soon());
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_FALSE(*again) << "it was not what the tag says";
  EXPECT_EQ(server.requests().size(), 3U);
}

TEST(S3SourceTest, NoSignatureFollowsARedirectionToAnotherHost) {
  HttpScript elsewhere([](const ScriptRequest&) {
    return Reply(206, {"ETag: \"e\"", "Content-Range: bytes 0-2/3"}, "abc");
  });
  HttpScript server([&](const ScriptRequest&) {
    return Reply(307, {"Location: " + elsewhere.origin() + "/bucket/m/a"}, "");
  });
  SourceSpec spec{.url = "s3://bucket/m?endpoint=" + server.origin()};
  spec.credentials = {.access_key = "AK", .secret_key = "SK", .session_token = "ST"};
  std::string text(3, '.');
  ASSERT_TRUE((*OpenSource(spec))
                  ->Read({.path = "a", .bytes = 3, .tag = "\"e\""}, 0,
                         std::as_writable_bytes(std::span(text)), Soon())
                  .ok());
  const ScriptRequest request = elsewhere.requests().at(0);
  EXPECT_EQ(request.Header("authorization"), "");
  EXPECT_EQ(request.Header("x-amz-security-token"), "");
  EXPECT_NE(server.requests().at(0).Header("authorization"), "");
}

TEST(S3SourceTest, SignedHeadersAreThoseOfTheRequest) {
  const HttpUrl url = *ParseHttpUrl("http://h:9000/bucket/k");
  const SourceCredentials credentials{.access_key = "AK", .secret_key = "SK"};
  const auto headers = S3SignedHeaders(credentials, "r", "GET", url, "20260101T000000Z");
  ASSERT_EQ(headers.size(), 3U);
  EXPECT_THAT(headers[0],
              StartsWith("Authorization: AWS4-HMAC-SHA256 Credential=AK/20260101/r/s3/"));
  EXPECT_EQ(headers[2], "x-amz-date: 20260101T000000Z");
  EXPECT_NE(S3SignedHeaders(credentials, "r", "HEAD", url, "20260101T000000Z")[0], headers[0]);
}

constexpr char kHex[] = "0123456789abcdef0123456789abcdef";

// What the source says of a file of `bytes` bytes whose tag is `tag`, `heads` by target.
std::string SumOf(const std::string& tag, uint64_t bytes,
                  const std::map<std::string, ScriptReply>& heads) {
  HttpScript server([&](const ScriptRequest& request) {
    EXPECT_EQ(request.method, "HEAD");
    const auto head = heads.find(request.target);
    return head == heads.end() ? Reply(400, {}, "") : head->second;
  });
  const auto sum =
      (*OpenSource({.url = "s3://bucket/m?endpoint=" + server.origin(), .retries_max = 0}))
          ->Sum({.path = "f", .bytes = bytes, .tag = tag}, Soon());
  return sum.ok() ? *sum : fmt::format("error {}", static_cast<int>(sum.status().code()));
}

ScriptReply Head(int status, const std::string& tag, size_t bytes,
                 const std::string& more = "X-Nothing: 1") {
  return Reply(status, {"ETag: " + tag, more}, std::string(bytes, 'x'));
}

TEST(S3SourceTest, TheTagOfAnObjectThatWasPutWholeIsItsSum) {
  const std::string tag = std::string("\"") + kHex + "\"";
  EXPECT_EQ(SumOf(tag, 9, {{"/bucket/m/f", Head(200, tag, 9)}}), std::string("md5:") + kHex);
  const std::string upper = "\"0123456789ABCDEF0123456789ABCDEF\"";
  EXPECT_EQ(SumOf(upper, 9, {{"/bucket/m/f", Head(200, upper, 9)}}), std::string("md5:") + kHex);
  EXPECT_EQ(
      SumOf(tag, 9, {{"/bucket/m/f", Head(200, tag, 9, "x-amz-server-side-encryption: aws:kms")}}),
      "")
      << "encrypted under a key, it is something else";
  EXPECT_EQ(SumOf(tag, 9, {{"/bucket/m/f", Head(200, tag, 8)}}),
            fmt::format("error {}", static_cast<int>(StatusCode::kFailedPrecondition)));
  for (const std::string& other : {std::string("\"e\""), std::string("W/") + tag,
                                   std::string("last-modified:x"), std::string(kHex)})
    EXPECT_EQ(SumOf(other, 9, {}), "") << other;
}

TEST(S3SourceTest, OfAnObjectThatWasPutInPartsTheirLengthIsAsked) {
  const std::string tag = std::string("\"") + kHex + "-3\"";
  std::map<std::string, ScriptReply> heads = {{"/bucket/m/f", Head(200, tag, 25)},
                                              {"/bucket/m/f?partNumber=1", Head(206, tag, 10)},
                                              {"/bucket/m/f?partNumber=3", Head(206, tag, 5)}};
  EXPECT_EQ(SumOf(tag, 25, heads), std::string("md5-parts:10:") + kHex + "-3");
  heads["/bucket/m/f?partNumber=3"] = Head(206, tag, 6);
  EXPECT_EQ(SumOf(tag, 25, heads), "") << "parts of other lengths";
  heads["/bucket/m/f?partNumber=1"] = Head(206, tag, 20);
  EXPECT_EQ(SumOf(tag, 25, heads), "") << "fewer parts than the tag says";
  heads["/bucket/m/f?partNumber=1"] = Head(200, tag, 25);
  EXPECT_EQ(SumOf(tag, 25, heads), "") << "a store that knows no parts";
  heads.erase("/bucket/m/f?partNumber=1");
  EXPECT_EQ(SumOf(tag, 25, heads), "") << "one that refuses to say";
}

}  // namespace
}  // namespace ems::model
