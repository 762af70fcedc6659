// Against vectors that Python's libraries have computed (hash_vectors.py).
#include "ems_context/hash_recipes.h"

#include <gtest/gtest.h>

#include <array>

#include "common/bytes.h"
#include "tests/ems_context/hash_vectors.h"

namespace ems::context {
namespace {

std::vector<int32_t> Tokens() {
  constexpr std::array<int32_t, 8> kEdges = {0, 23, 24, 255, 256, 65535, 65536, INT32_MAX};
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < 40; ++i)
    tokens.push_back(i % 5 == 0 ? kEdges[static_cast<size_t>(i) / 5 % 8]
                                : static_cast<int32_t>((i * i * 7919 + i) % 200000));
  return tokens;
}

std::vector<ExtraKey> Extra() {
  std::string bytes;
  for (char c = 0; c < 32; ++c) bytes.push_back(c);
  return {"lora", std::pair<std::string, int64_t>("image-hash", -3),
          std::pair<std::string, int64_t>("other", 300), "salt", ExtraBytes{bytes}};
}

std::vector<std::string> Hex(const std::vector<std::string>& hashes) {
  std::vector<std::string> hex;
  hex.reserve(hashes.size());
  for (const std::string& hash : hashes) hex.push_back(ToHex(AsBytes(hash)));
  return hex;
}
std::vector<std::string> Texts(const std::vector<std::string_view>& views) {
  return {views.begin(), views.end()};
}

TEST(HashRecipesTest, VllmChainsAreThoseOfPython) {
  ASSERT_EQ(test::kVllmVectors.size(), 10u);
  const std::vector<int32_t> tokens = Tokens();
  const std::vector<std::vector<ExtraKey>> extra = {Extra()};
  for (const test::VllmVector& one : test::kVllmVectors) {
    const std::string none = VllmNoneHash(one.hash, one.seed);
    EXPECT_EQ(ToHex(AsBytes(none)), one.none_hash);
    EXPECT_EQ(Hex(VllmBlockHashes(one.hash, none, tokens, 16)), Texts(one.plain));
    EXPECT_EQ(Hex(VllmBlockHashes(one.hash, none, tokens, 16, extra)), Texts(one.extra));
    EXPECT_EQ(VllmBlockHash(one.hash, none, std::span(tokens).first(16)),
              VllmBlockHashes(one.hash, none, tokens, 16)[0]);
  }
}

TEST(HashRecipesTest, SglangChainsAreThoseOfPython) {
  const std::vector<int32_t> tokens = Tokens();
  EXPECT_EQ(SglangPageHashes("", std::span(tokens).first(3), 1), Texts(test::kSglang1));
  EXPECT_EQ(SglangPageHashes("", tokens, 16), Texts(test::kSglang16));
  EXPECT_EQ(SglangPageHashes("", tokens, 20), Texts(test::kSglang20));
  const std::string first = SglangPageHash("", std::span(tokens).first(20));
  EXPECT_EQ(SglangPageHash(first, std::span(tokens).last(20)), test::kSglang20[1]);
}

TEST(HashRecipesTest, AChainGoesOnWhereItWasLeft) {
  const std::vector<int32_t> tokens = Tokens();
  for (const VllmHash hash : {VllmHash::kSha256Cbor, VllmHash::kXxhashCbor}) {
    const auto whole = VllmBlockHashes(hash, VllmNoneHash(hash, "0"), tokens, 10);
    ASSERT_EQ(whole.size(), 4u);
    const auto rest = VllmBlockHashes(hash, whole[1], std::span(tokens).subspan(20), 10);
    EXPECT_EQ(rest, (std::vector<std::string>{whole[2], whole[3]}));
  }
  EXPECT_TRUE(VllmBlockHashes(VllmHash::kSha256Cbor, "", tokens, 0).empty());
  EXPECT_TRUE(SglangPageHashes("", tokens, 41).empty());
}

TEST(HashRecipesTest, AGroupIsFourBytesBehindTheHash) {
  EXPECT_EQ(ToHex(AsBytes(VllmGroupKey("\x01\x02", 0x00010203))), "010200010203");
}

}  // namespace
}  // namespace ems::context
