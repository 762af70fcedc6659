// What must hold: what is written of a version is read back; damaged names are refused.
#include "mp_controller/models/model_rows.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace ems::controller {
namespace {

using model::BlockDigest;

TEST(ModelRowsTest, NamesComeBackAndSortByVersion) {
  EXPECT_EQ(*ParseModelId(ModelKey(kModelPrefix, 77).substr(kModelPrefix.size())), 77U);
  const auto name = ParseDigestRowName(DigestKey(5, 16'384).substr(kDigestPrefix.size()));
  ASSERT_TRUE(name.ok()) << name.status();
  EXPECT_EQ(name->id, 5U);
  EXPECT_EQ(name->first, 16'384U);
  EXPECT_LT(ModelKey(kManifestPrefix, 9), ModelKey(kManifestPrefix, 16));
  EXPECT_LT(ModelKey(kManifestPrefix, 9), ModelKey(kModelPrefix, 1)) << "manifests come first";
  EXPECT_LT(ModelKey(kModelPrefix, 9), DigestKey(1, 0));
}

TEST(ModelRowsTest, DamagedNamesAreRefused) {
  for (const char* text : {"", "00000005", "00000005/", "xyz", "00000005/00g"})
    EXPECT_EQ(ParseDigestRowName(text).status().code(), StatusCode::kDataLoss) << text;
  EXPECT_EQ(ParseModelId("12 ").status().code(), StatusCode::kDataLoss);
}

TEST(ModelRowsTest, DigestsComeBackWithoutATornEnd) {
  std::string row;
  AppendDigest(3, BlockDigest{std::byte{1}}, &row);
  AppendDigest(70'000, BlockDigest{std::byte{2}}, &row);
  std::vector<std::pair<uint32_t, BlockDigest>> read;
  const auto take = [&](uint32_t block, const BlockDigest& digest) {
    read.emplace_back(block, digest);
    return block == 9 ? Error(StatusCode::kInternal, "no") : OkStatus();
  };
  ASSERT_TRUE(ForEachDigest(row + "torn", take).ok());
  ASSERT_EQ(read.size(), 2U);
  EXPECT_EQ(read[0], std::pair(3U, BlockDigest{std::byte{1}}));
  EXPECT_EQ(read[1], std::pair(70'000U, BlockDigest{std::byte{2}}));
  AppendDigest(9, BlockDigest{}, &row);
  AppendDigest(10, BlockDigest{}, &row);
  EXPECT_EQ(ForEachDigest(row, take).code(), StatusCode::kInternal);
  EXPECT_EQ(read.back().first, 9U) << "the first error ends it";
}

}  // namespace
}  // namespace ems::controller
