#include "model_files/source/body_digest.h"

#include <gtest/gtest.h>

namespace ems::model {
namespace {

// RFC 9530, appendix B: of {"hello": "world"} and a line end. The MD5 is RFC 1321's of "abc".
constexpr std::string_view kJson = "{\"hello\": \"world\"}\n";
constexpr const char* kJsonSha256 = "sha-256=:RK/0qy18MlBSVnWgjwz6lZEWjP/lF5HF9bvEF8FabDg=:";
constexpr const char* kAbcMd5 = "kAFQmDzST7DWlj99KOF/cg==";

TEST(BodyDigestTest, ComparesContentDigests) {
  HttpHead head;
  head.content_digest = std::string("sha-512=:AAAA:, ") + kJsonSha256;
  EXPECT_TRUE(HasBodyDigest(head));
  EXPECT_TRUE(HasChecksum(head, false));
  EXPECT_EQ(ContradictedField(head, AsBytes(kJson), false), std::nullopt);
  EXPECT_EQ(ContradictedField(head, AsBytes("{}"), false), "Content-Digest");
}

TEST(BodyDigestTest, ReprDigestsAreOfWholeFiles) {
  HttpHead head;
  head.repr_digest = kJsonSha256;
  EXPECT_TRUE(HasChecksum(head, true));
  EXPECT_FALSE(HasChecksum(head, false));
  EXPECT_FALSE(HasBodyDigest(head));
  EXPECT_EQ(ContradictedField(head, AsBytes(kJson), true), std::nullopt);
  EXPECT_EQ(ContradictedField(head, AsBytes("{}"), true), "Repr-Digest");
  EXPECT_EQ(ContradictedField(head, AsBytes("{}"), false), std::nullopt) << "a part of it";
}

TEST(BodyDigestTest, ComparesContentMd5OfWholeFiles) {
  HttpHead head;
  head.content_md5 = kAbcMd5;
  EXPECT_TRUE(HasChecksum(head, true));
  EXPECT_FALSE(HasChecksum(head, false));
  EXPECT_FALSE(HasBodyDigest(head));
  EXPECT_EQ(ContradictedField(head, AsBytes("abc"), true), std::nullopt);
  EXPECT_EQ(ContradictedField(head, AsBytes("abd"), true), "Content-MD5");
  EXPECT_EQ(ContradictedField(head, AsBytes("abd"), false), std::nullopt) << "perhaps of all";
}

TEST(BodyDigestTest, WhatIsNotUnderstoodSaysNothing) {
  for (const char* field : {"", "sha-512=:AAAA:", "sha-256", "sha-256=:", "sha-256=:AAAA"}) {
    HttpHead head;
    head.content_digest = field;
    EXPECT_FALSE(HasBodyDigest(head)) << field;
    EXPECT_FALSE(HasChecksum(head, true)) << field;
    EXPECT_EQ(ContradictedField(head, AsBytes("abc"), true), std::nullopt) << field;
  }
}

TEST(BodyDigestTest, TagsOfSimpleObjectsAreTheirMd5) {
  const HttpHead head;
  EXPECT_EQ(Md5OfTag("\"900150983CD24fb0d6963f7d28e17f72\"", head),
            "900150983cd24fb0d6963f7d28e17f72");
  EXPECT_EQ(Md5OfTag("\"900150983cd24fb0d6963f7d28e17f72-2\"", head), std::nullopt) << "in parts";
  EXPECT_EQ(Md5OfTag("\"900150983cd24fb0d6963f7d28e17f7g\"", head), std::nullopt);
  EXPECT_EQ(Md5OfTag("W/\"900150983cd24fb0d6963f7d28e17f72\"", head), std::nullopt);
  EXPECT_EQ(Md5OfTag("", head), std::nullopt);
  HttpHead encrypted;
  encrypted.encrypted = true;
  EXPECT_EQ(Md5OfTag("\"900150983cd24fb0d6963f7d28e17f72\"", encrypted), std::nullopt);
}

}  // namespace
}  // namespace ems::model
