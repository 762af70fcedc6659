#include "model_files/source/source_url.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ems::model {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

void ExpectRefused(std::string_view url) {
  const Result<SourceUrl> parsed = ParseSourceUrl(url);
  ASSERT_FALSE(parsed.ok()) << url;
  EXPECT_EQ(parsed.status().code(), StatusCode::kInvalidArgument) << url;
}

TEST(SourceUrlTest, FoldersAreAbsolutePathsOrFileUrls) {
  EXPECT_EQ(ParseSourceUrl("/models/llama 3")->folder, "/models/llama 3");
  EXPECT_EQ(ParseSourceUrl("file:///models/llama%203")->folder, "/models/llama 3");
  EXPECT_EQ(ParseSourceUrl("/a/..b")->folder, "/a/..b");
  EXPECT_EQ(ParseSourceUrl("/a://b")->folder, "/a://b");
  for (const std::string_view url :
       {"", "models", "./models", "file://host/models", "file://", "/a/../b", "/..",
        "file:///a/%2e%2e/b", "file:///a%", "file:///a%zz", "file:///a%00b", "/a\nb"}) {
    ExpectRefused(url);
  }
}

TEST(SourceUrlTest, HttpPrefixesEndWithASlash) {
  const Result<SourceUrl> url = ParseSourceUrl("HTTP://Models.Example:8080/m/v%201");
  ASSERT_TRUE(url.ok()) << ToString(url.status());
  EXPECT_EQ(url->kind, SourceUrl::Kind::kHttp);
  EXPECT_EQ(url->http.Text(), "http://models.example:8080/m/v%201/");
  EXPECT_EQ(ParseSourceUrl("https://h")->http.Text(), "https://h/");
  EXPECT_EQ(ParseSourceUrl("https://h:443/a/")->http.Text(), "https://h/a/");
  EXPECT_EQ(ParseSourceUrl("http://[::1]:9/a")->http.Text(), "http://[::1]:9/a/");
  for (const std::string_view url_text :
       {"http://", "http:///a", "http://h:0/", "http://h:65536/", "http://h:/", "http://h:8x/",
        "http://h/a b", "http://h/a?x=1", "http://h/a?", "http://h/%zz", "http://h/a/../b",
        "http://h/a/%2e%2e/b", "http://h//a", "http://h h/", "ftp://h/a", "http://[::1/a",
        "http://h%41/"}) {
    ExpectRefused(url_text);
  }
}

TEST(SourceUrlTest, S3WithItsDefaultsIsAws) {
  const Result<SourceUrl> url = ParseSourceUrl("s3://bucket.a/models/v1");
  ASSERT_TRUE(url.ok()) << ToString(url.status());
  EXPECT_EQ(url->bucket, "bucket.a");
  EXPECT_EQ(url->prefix, "models/v1/");
  EXPECT_EQ(url->http.Text(), "https://s3.us-east-1.amazonaws.com/");
  EXPECT_TRUE(url->virtual_host);
  EXPECT_EQ(ParseSourceUrl("s3://bucket")->prefix, "");
  EXPECT_EQ(ParseSourceUrl("s3://bucket/?region=eu-west-1")->http.authority,
            "s3.eu-west-1.amazonaws.com");
}

TEST(SourceUrlTest, S3ElsewhereTakesEndpointRegionAndStyle) {
  const Result<SourceUrl> url =
      ParseSourceUrl("s3://bucket/a%20b/?endpoint=http%3A%2F%2Fminio:9000&region=r1");
  ASSERT_TRUE(url.ok()) << ToString(url.status());
  EXPECT_EQ(url->prefix, "a b/");
  EXPECT_EQ(url->http.Text(), "http://minio:9000/");
  EXPECT_EQ(url->region, "r1");
  EXPECT_FALSE(url->virtual_host);
  EXPECT_TRUE(
      ParseSourceUrl("s3://bucket?endpoint=https://o.example/&style=virtual")->virtual_host);
  for (const std::string_view text :
       {"s3://", "s3:///key", "s3://ab/", "s3://a..b/", "s3://buck et/", "s3://bucket/../x",
        "s3://bucket//x", "s3://bucket/?endpoint=minio:9000", "s3://bucket/?endpoint=http://h/p",
        "s3://bucket/?endpoint=http://h/?x=y", "s3://bucket/?style=other",
        "s3://bucket/?region=", "s3://bucket/?region=a/b", "s3://bucket/?region",
        "s3://bucket/?acl=x", "s3://bucket/?endpoint=http://[::1]:9&style=virtual"}) {
    ExpectRefused(text);
  }
}

TEST(SourceUrlTest, CredentialsAreRefusedAndNotRepeated) {
  for (const std::string_view url :
       {"http://user:hunter2@h/a", "https://hunter2@h/", "s3://AK:hunter2@bucket/x",
        "s3://bucket/x?secret_key=hunter2", "s3://bucket/x?endpoint=http://u:hunter2@h",
        "http://h/a?token=hunter2", "http://h:hunter2/a", "s3://bucket/?region=hunter2/",
        "s3://bucket/?style=hunter2"}) {
    const Result<SourceUrl> parsed = ParseSourceUrl(url);
    ASSERT_FALSE(parsed.ok()) << url;
    EXPECT_THAT(std::string(Message(parsed.status())), Not(HasSubstr("hunter2"))) << url;
  }
}

TEST(SourceUrlTest, ShownUrlsHaveNoQuery) {
  const Result<HttpUrl> url = ParseHttpUrl("https://cdn.example/a/b?X-Amz-Signature=s3cret#f");
  ASSERT_TRUE(url.ok());
  EXPECT_EQ(url->Shown(), "https://cdn.example/a/b");
  EXPECT_EQ(url->Text(), "https://cdn.example/a/b?X-Amz-Signature=s3cret");
}

TEST(SourceUrlTest, OriginsDifferBySchemeHostAndPort) {
  const HttpUrl url = *ParseHttpUrl("https://h/a");
  EXPECT_TRUE(url.SameOrigin(*ParseHttpUrl("https://H:443/b?c")));
  EXPECT_FALSE(url.SameOrigin(*ParseHttpUrl("http://h/a")));
  EXPECT_FALSE(url.SameOrigin(*ParseHttpUrl("https://h:444/a")));
  EXPECT_FALSE(url.SameOrigin(*ParseHttpUrl("https://h.evil/a")));
}

TEST(SourceUrlTest, FilePathsStayBelowTheRoot) {
  for (const std::string_view path : {"a", "a/b.c", "..a", "a../b", "a b/\xC3\xA9"}) {
    EXPECT_TRUE(CheckFilePath(path).ok()) << path;
  }
  for (const std::string& path :
       {std::string(), std::string("/a"), std::string("a/"), std::string("a//b"), std::string(".."),
        std::string("a/../b"), std::string("a/.."), std::string("./a"), std::string("a/."),
        std::string("a\0b", 3), std::string("a\nb"), std::string(kPathBytesMax + 1, 'a')}) {
    EXPECT_EQ(CheckFilePath(path).code(), StatusCode::kInvalidArgument) << path;
  }
}

TEST(SourceUrlTest, PercentEncodingGoesThereAndBack) {
  EXPECT_EQ(PercentEncode("a/b c+\xC3\xA9~", true), "a/b%20c%2B%C3%A9~");
  EXPECT_EQ(PercentEncode("a/b", false), "a%2Fb");
  std::string all;
  for (int c = 0; c < 256; ++c) all += static_cast<char>(c);
  EXPECT_EQ(*PercentDecode(PercentEncode(all, false)), all);
  EXPECT_FALSE(PercentDecode("%").ok());
  EXPECT_FALSE(PercentDecode("%4").ok());
  EXPECT_FALSE(PercentDecode("%+4").ok());
}

}  // namespace
}  // namespace ems::model
