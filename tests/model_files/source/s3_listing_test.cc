#include "model_files/source/s3_listing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ems::model {
namespace {

using ::testing::HasSubstr;

std::string Object(std::string_view key, std::string_view size, std::string_view etag) {
  return fmt::format(
      "<Contents><Key>{}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
      "<ETag>{}</ETag><Size>{}</Size><Owner><ID>Key</ID></Owner></Contents>",
      key, etag, size);
}

std::string Page(std::string_view objects, std::string_view truncated, std::string_view token) {
  return fmt::format(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
      "<ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Name>b</Name>"
      "<Prefix>m/</Prefix><KeyCount>1</KeyCount><IsTruncated>{}</IsTruncated>{}{}"
      "<CommonPrefixes><Prefix>m/x/</Prefix></CommonPrefixes></ListBucketResult>",
      truncated, objects, token);
}

TEST(S3ListingTest, APageWithMoreToCome) {
  const Result<S3Page> page =
      ParseS3Page(Page(Object("m/a &amp; b", "12", "&quot;e1&quot;") + Object("m/c", "0", "e2"),
                       "true", "<NextContinuationToken>t/+=</NextContinuationToken>"));
  ASSERT_TRUE(page.ok()) << ToString(page.status());
  ASSERT_EQ(page->objects.size(), 2U);
  EXPECT_EQ(page->objects[0].key, "m/a & b");
  EXPECT_EQ(page->objects[0].bytes, 12U);
  EXPECT_EQ(page->objects[0].etag, "\"e1\"");
  EXPECT_EQ(page->objects[1].etag, "\"e2\"");  // some servers leave the quotes out
  EXPECT_EQ(page->next_token, "t/+=");
}

TEST(S3ListingTest, TheLastPageHasNoToken) {
  const Result<S3Page> page =
      ParseS3Page(Page("", "false", "<NextContinuationToken>stale</NextContinuationToken>"));
  ASSERT_TRUE(page.ok());
  EXPECT_TRUE(page->objects.empty());
  EXPECT_EQ(page->next_token, "");
}

TEST(S3ListingTest, WhatIsNoListingIsDataLoss) {
  const std::string good = Object("m/a", "1", "e");
  for (const std::string& xml :
       {std::string("<html><body>hello</body></html>"), std::string("no XML"),
        std::string("<Error><Code>X</Code></Error>"), Page(good, "", ""), Page(good, "maybe", ""),
        Page(good, "true", ""), Page(Object("", "1", "e"), "false", ""),
        Page(Object("k", "", "e"), "false", ""), Page(Object("k", "-1", "e"), "false", ""),
        Page(Object("k", "1x", "e"), "false", ""), Page(Object("k", "1", ""), "false", ""),
        Page(Object("k", "99999999999999999999999", "e"), "false", ""),
        Page(Object(std::string(5000, 'k'), "1", "e"), "false", ""),
        Page("<Contents></Contents>", "false", "")}) {
    EXPECT_EQ(ParseS3Page(xml).status().code(), StatusCode::kDataLoss) << xml.substr(0, 300);
  }
}

// In front of, or in place of, a page that is good.
TEST(S3ListingTest, WhatIsNotWellFormedIsDataLoss) {
  const std::string good = Page(Object("k", "1", "e"), "false", "");
  ASSERT_TRUE(ParseS3Page(good).ok());
  ASSERT_TRUE(ParseS3Page(" \n<!-- x -->" + good + "\n").ok());
  for (const std::string& xml :
       {std::string(), std::string("  "), "x" + good, good + "x", good + good, good + "</a>",
        "<![CDATA[x]]>" + good, good.substr(0, good.size() - 1), "<a>" + good, good + "<!-- ",
        "<?xml" + good.substr(38), good + std::string(1, '\0')}) {
    EXPECT_EQ(ParseS3Page(xml).status().code(), StatusCode::kDataLoss) << xml.substr(0, 300);
  }
}

TEST(S3ListingTest, ReferencesBecomeCharactersOnceOrThePageIsDataLoss) {
  const auto key_of = [](std::string_view key) {
    const Result<S3Page> page = ParseS3Page(Page(Object(key, "1", "e"), "false", ""));
    return page.ok() ? page->objects[0].key : std::string(CodeName(page.status().code()));
  };
  EXPECT_EQ(key_of("&lt;&gt;&amp;&quot;&apos;&#65;&#x4e;&#x20AC;&#x1F600;&#233;"),
            "<>&\"'AN\xE2\x82\xAC\xF0\x9F\x98\x80\xC3\xA9");
  EXPECT_EQ(key_of("&amp;lt;"), "&lt;");
  EXPECT_EQ(key_of("a<![CDATA[<b>]]>c"), "a<b>c");
  EXPECT_EQ(key_of(" a\r\n "), " a\r\n ");
  for (const std::string_view bad : {"&lt", "&nope;", "&#0;", "&#xD800;", "&#x110000;", "&#;",
                                     "&#x;", "&#-1;", "&#99999999999999999999;", "&", "a & b"}) {
    EXPECT_EQ(key_of(bad), "DATA_LOSS") << bad;
  }
}

TEST(S3ListingTest, DocumentTypesAreRefusedSoThatNothingExpands) {
  const std::string good = Page("", "false", "");
  EXPECT_FALSE(ParseS3Page("<!DOCTYPE a [<!ENTITY x \"y\">]>" + good).ok());
  EXPECT_EQ(ParseS3Error("<!DOCTYPE a><Error><Code>X</Code></Error>").code, "");
}

TEST(S3ListingTest, DepthAndNamesAreBounded) {
  std::string open, close;
  for (int i = 0; i < 15; ++i) open += "<a>", close += "</a>";
  EXPECT_TRUE(ParseS3Page(Page(open + close, "false", "")).ok());
  EXPECT_FALSE(ParseS3Page(Page("<a>" + open + close + "</a>", "false", "")).ok());
  const std::string name(128, 'n');
  EXPECT_TRUE(ParseS3Page(Page("<" + name + "/>", "false", "")).ok());
  EXPECT_FALSE(ParseS3Page(Page("<" + name + "n/>", "false", "")).ok());
}

TEST(S3ListingTest, PrefixesOfNamesAreDropped) {
  EXPECT_EQ(ParseS3Error("<p:Error xmlns:p=\"http://x\"><p:Code>X</p:Code></p:Error>").code, "X");
}

TEST(S3ListingTest, FieldsOfOneObjectDoNotLeakIntoTheNext) {
  const std::string without_size = "<Contents><Key>k2</Key><ETag>e</ETag></Contents>";
  EXPECT_FALSE(ParseS3Page(Page(Object("k", "1", "e") + without_size, "false", "")).ok());
}

TEST(S3ListingTest, ObjectsOnOnePageAreBounded) {
  std::string objects;
  for (size_t i = 0; i < kS3PageMax; ++i) objects += Object(fmt::format("k{}", i), "1", "e");
  EXPECT_TRUE(ParseS3Page(Page(objects, "false", "")).ok());
  EXPECT_FALSE(ParseS3Page(Page(objects + Object("k", "1", "e"), "false", "")).ok());
}

TEST(S3ListingTest, ErrorsGiveCodeAndMessageMadePrintable) {
  const S3ErrorText text = ParseS3Error(
      "<Error><Code>NoSuchKey</Code><Message>not\n&#x1b; here</Message><Key>k</Key></Error>");
  EXPECT_EQ(text.code, "NoSuchKey");
  EXPECT_THAT(text.message, HasSubstr("here"));
  EXPECT_EQ(text.message.find('\n'), std::string::npos);
  EXPECT_EQ(text.message.find('\x1b'), std::string::npos);
}

TEST(S3ListingTest, OtherTextsAreNoErrors) {
  for (const std::string_view text :
       {"", "404 page not found", "<html><Code>x</Code></html>", "<Error><Code>x</Code>"}) {
    EXPECT_EQ(ParseS3Error(text).code, "") << text;
  }
}

}  // namespace
}  // namespace ems::model
