// What must hold: sums are those that object stores give, however the bytes are cut; texts
// that make no sense are refused.
#include "model_files/format/file_sum.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/evp.h>

#include "common/sha256.h"

namespace ems::model {
namespace {

using ::testing::HasSubstr;

std::string Bytes(size_t count) {
  std::string bytes(count, '\0');
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<char>(i * 37 + i / 255);
  return bytes;
}

std::string SumOfParts(const std::string& bytes, size_t part) {
  std::string sums;
  for (size_t at = 0; at < bytes.size(); at += part)
    sums += AsText(*Md5(AsBytes(std::string_view(bytes).substr(at, part))));
  return ToHex(*Md5(AsBytes(sums)));
}

std::string SumInSteps(const FileSum& sum, const std::string& bytes, size_t step) {
  FileHasher hasher(sum);
  for (size_t at = 0; at < bytes.size(); at += step)
    hasher.Update(AsBytes(std::string_view(bytes).substr(at, step)));
  return hasher.Finish();
}

TEST(FileSumTest, OfTheWholeIsItsMd5) {
  const std::string bytes = Bytes(10'001);
  for (const size_t step : {1U, 63U, 64U, 4096U, 20'000U})
    EXPECT_EQ(SumInSteps({}, bytes, step), ToHex(*Md5(AsBytes(bytes)))) << step;
}

TEST(FileSumTest, OfPartsIsTheMd5OfTheirMd5s) {
  const std::string bytes = Bytes(10'000);
  for (const size_t part : {100U, 1000U, 3000U, 10'000U, 50'000U}) {
    const FileSum sum{.part_bytes = part, .parts = 1, .hex = {}};
    for (const size_t step : {77U, 1000U, 2500U, 10'000U})
      EXPECT_EQ(SumInSteps(sum, bytes, step), SumOfParts(bytes, part)) << part << " " << step;
  }
}

TEST(FileSumTest, TextsAreReadAsTheyAreWritten) {
  const std::string hex = "0123456789abcdef0123456789abcdef";
  const FileSum whole{.part_bytes = 0, .parts = 0, .hex = hex};
  const FileSum parts{.part_bytes = 100, .parts = 3, .hex = hex};
  EXPECT_EQ(whole.Text(), "md5:" + hex);
  EXPECT_EQ(parts.Text(), "md5-parts:100:" + hex + "-3");
  EXPECT_EQ(ParseFileSum(whole.Text(), 1).value(), whole);
  EXPECT_EQ(ParseFileSum(parts.Text(), 201).value(), parts);
  EXPECT_EQ(ParseFileSum(parts.Text(), 300).value(), parts);
}

TEST(FileSumTest, TextsThatMakeNoSenseAreRefused) {
  const std::string hex = "0123456789abcdef0123456789abcdef";
  for (const std::string& text :
       {std::string(), hex, std::string("md5:"), "md5:" + hex.substr(1), "md5:" + hex + "0",
        std::string("md5:0123456789ABCDEF0123456789ABCDEF"), "sha1:" + hex, "md5-parts:" + hex,
        "md5-parts:0:" + hex + "-3", "md5-parts:100:" + hex, "md5-parts:100:" + hex + "-2",
        "md5-parts:100:" + hex + "-3x", "md5-parts:-1:" + hex + "-3", "md5-parts:100:" + hex + "3"})
    EXPECT_EQ(ParseFileSum(text, 300).status().code(), StatusCode::kInvalidArgument) << text;
}

// As in FIPS mode: asked for what is approved alone, libcrypto has no MD5 here.
TEST(FileSumTest, WithoutMd5SumsAreNotOffered) {
  EXPECT_EQ(FileHasher::Offered(), OkStatus());
  ASSERT_EQ(EVP_set_default_properties(nullptr, "fips=yes"), 1);
  const Status offered = FileHasher::Offered();
  ASSERT_EQ(EVP_set_default_properties(nullptr, ""), 1);
  EXPECT_EQ(offered.code(), StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(Message(offered)), HasSubstr("FIPS"));
  EXPECT_THAT(std::string(Message(offered)), HasSubstr("--ignore-etags"));
}

}  // namespace
}  // namespace ems::model
