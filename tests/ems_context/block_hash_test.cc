#include "ems_context/block_hash.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "common/bytes.h"

namespace ems::context {
namespace {

KeyDomain FullDomain() {
  KeyDomain domain;
  domain.model = "deepseek-r1@4f1c";
  domain.dtype = "bf16";
  domain.kv_layout = "mla/61x576";
  domain.tp_rank = 3, domain.tp_size = 8;
  domain.pp_rank = 1, domain.pp_size = 2;
  domain.lora = "lora-7";
  domain.cache_salt = "tenant-a";
  domain.multimodal_hashes = {"aa@0", "bb@17"};
  domain.custom = {{"group", "2"}};
  return domain;
}

BlockHasher MustMake(const KeyDomain& domain, HashKind kind = HashKind::kSha256,
                     uint32_t block_tokens = 16) {
  auto hasher = BlockHasher::Make(domain, kind, block_tokens);
  EXPECT_TRUE(hasher.ok()) << ToString(hasher.status());
  return *std::move(hasher);
}

std::vector<int32_t> Tokens(size_t count) {
  std::vector<int32_t> tokens(count);
  std::iota(tokens.begin(), tokens.end(), 0);
  return tokens;
}

std::vector<std::string> Hex(const std::vector<std::string>& keys) {
  std::vector<std::string> hex;
  for (const std::string& key : keys) hex.push_back(ToHex(AsBytes(key)));
  return hex;
}

// Made by an independent program (Python's hashlib) from the recipe in block_hash.h. Stored blocks
// have these names: they never change.
TEST(BlockHashTest, Sha256VectorsAreFrozen) {
  EXPECT_EQ(Hex(MustMake({}).HashTokens(Tokens(50))),
            (std::vector<std::string>{
                "3649c9ef7b4018723e97ccab9499ad8be5c851c4e0d8e0c00724fe702d29adfe",
                "d682c0c54b8e5b6934f986c47343dac2c4e04e20871e106be20e1c8bf4974c62",
                "839c8837873ff67018c45b6cc2532b3f82ce35db05bc0fb9d1d655c83e85b711"}));
  EXPECT_EQ(Hex(MustMake(FullDomain()).HashTokens(Tokens(50))),
            (std::vector<std::string>{
                "6f3f595ae3aebdd5eeae53410ddcbaceecff7de5bc1bbef73e4e4c4b884e10bb",
                "eee2be772ddacbf64330c9819bb13ef169ee4c93a6e33edea4992e2ed325d3aa",
                "15869960e08e91096fb0956c93eff565f436b646e2c5358d2356ff9b183913e4"}));
  EXPECT_EQ(Hex(MustMake(FullDomain(), HashKind::kSha256, 128).HashTokens(Tokens(128))),
            (std::vector<std::string>{
                "12aee1611aff865f7bd8cb3475ae95e9fdfeef4eebec7c73ef2b99ecfeb8199f"}));
}

TEST(BlockHashTest, TokensAreSigned32BitLittleEndian) {
  std::vector<int32_t> tokens(16, 0);
  tokens[0] = -1;
  tokens[1] = std::numeric_limits<int32_t>::max();
  tokens[2] = std::numeric_limits<int32_t>::min();
  EXPECT_EQ(Hex(MustMake({}).HashTokens(tokens)),
            (std::vector<std::string>{
                "7d65dd9539b1b53af331d648f1254faf609e4381534dac84c14bbf53e6965688"}));
}

TEST(BlockHashTest, OwnKeyVectorsAreFrozen) {
  EXPECT_EQ(ToHex(AsBytes(*MustMake({}).OwnKey("block-7"))),
            "9d5b3a6d33a7ab716aa8281b19eece9ac72c2b5c1a1be3304357bb66ed5eea17");
  EXPECT_EQ(ToHex(AsBytes(*MustMake(FullDomain()).OwnKey("block-7"))),
            "1b9e783e17d41f451e66df00dfc71ee05e85ab7c5f57cc01c20b35b5e1229d4e");
}

TEST(BlockHashTest, ManyOwnKeysAreThoseOfEach) {
  const std::string longest(512, 'n');
  const std::vector<std::string_view> names = {"block-7", "h-1", "h1", longest, "block-7"};
  for (const HashKind kind : {HashKind::kSha256, HashKind::kXxh3}) {
    const BlockHasher hasher = MustMake(FullDomain(), kind);
    const auto keys = hasher.OwnKeys(names);
    ASSERT_TRUE(keys.ok()) << keys.status();
    ASSERT_EQ(keys->size(), names.size());
    for (size_t i = 0; i < names.size(); ++i) EXPECT_EQ((*keys)[i], *hasher.OwnKey(names[i])) << i;
  }
  EXPECT_EQ(MustMake({}).OwnKeys({})->size(), 0u);
  const std::vector<std::string_view> bad = {"good", ""};
  EXPECT_EQ(MustMake({}).OwnKeys(bad).status().code(), StatusCode::kInvalidArgument);
}

TEST(BlockHashTest, Xxh3VectorsAreFrozen) {
  EXPECT_EQ(Hex(MustMake(FullDomain(), HashKind::kXxh3).HashTokens(Tokens(32))),
            (std::vector<std::string>{"1d174111dbdc6a95fc9abd2dbadb598f",
                                      "a0dc7df701d6f0b47d6af9e9da06cdf0"}));
}

TEST(BlockHashTest, OnlyFullBlocksHaveKeys) {
  const BlockHasher hasher = MustMake({});
  EXPECT_TRUE(hasher.HashTokens({}).empty());
  EXPECT_TRUE(hasher.HashTokens(Tokens(15)).empty());
  EXPECT_EQ(hasher.HashTokens(Tokens(16)).size(), 1u);
  EXPECT_EQ(hasher.HashTokens(Tokens(31)).size(), 1u);
  EXPECT_EQ(hasher.HashTokens(Tokens(31)), hasher.HashTokens(Tokens(16)));
}

TEST(BlockHashTest, AChainContinuesFromItsParent) {
  for (const HashKind kind : {HashKind::kSha256, HashKind::kXxh3}) {
    const BlockHasher hasher = MustMake(FullDomain(), kind);
    const auto tokens = Tokens(64);
    const auto whole = hasher.HashTokens(tokens);
    const auto rest = hasher.HashTokens(std::span(tokens).subspan(32), whole[1]);
    EXPECT_EQ(rest, (std::vector<std::string>{whole[2], whole[3]}));
  }
}

TEST(BlockHashTest, ATokenChangesItsBlockAndAllBehindIt) {
  std::mt19937 random(20240607);  // seed: fixed, so a failure repeats
  for (const HashKind kind : {HashKind::kSha256, HashKind::kXxh3}) {
    const BlockHasher hasher = MustMake(FullDomain(), kind);
    const auto before = hasher.HashTokens(Tokens(128));
    for (int round = 0; round < 50; ++round) {
      auto tokens = Tokens(128);
      const size_t changed = random() % tokens.size();
      tokens[changed] ^= static_cast<int32_t>(1u << (random() % 32));
      const auto after = hasher.HashTokens(tokens);
      for (size_t block = 0; block < before.size(); ++block)
        EXPECT_EQ(before[block] == after[block], block < changed / 16) << changed;
    }
  }
}

// What must hold: no two of {domains × kinds × block sizes × tokens, own names} share a key.
TEST(BlockHashTest, DomainsNeverShareAKey) {
  std::vector<KeyDomain> domains(1, FullDomain());
  const auto add = [&](auto change) {
    domains.push_back(FullDomain());
    change(&domains.back());
  };
  add([](KeyDomain* d) { d->model = "ab", d->dtype = "c"; });
  add([](KeyDomain* d) { d->model = "a", d->dtype = "bc"; });
  add([](KeyDomain* d) { d->lora = "ab", d->cache_salt = "c"; });
  add([](KeyDomain* d) { d->lora = "a", d->cache_salt = "bc"; });
  add([](KeyDomain* d) { d->kv_layout = "NHD"; });
  add([](KeyDomain* d) { d->tp_rank = 4; });
  add([](KeyDomain* d) { d->tp_size = 16; });
  add([](KeyDomain* d) { d->pp_rank = 0; });
  add([](KeyDomain* d) { d->pp_size = 4; });
  add([](KeyDomain* d) { d->multimodal_hashes = {"aa@0bb@17"}; });
  add([](KeyDomain* d) { d->custom = {{"gro", "up2"}}; });
  std::set<std::string> keys;
  size_t made = 0;
  for (const KeyDomain& domain : domains) {
    for (const HashKind kind : {HashKind::kSha256, HashKind::kXxh3}) {
      for (const uint32_t block_tokens : {16u, 32u, 512u}) {
        const auto chain = MustMake(domain, kind, block_tokens).HashTokens(Tokens(1024));
        keys.insert(chain.begin(), chain.end());
        made += chain.size();
      }
      keys.insert(*MustMake(domain, kind).OwnKey("block-7"));
      ++made;
    }
  }
  EXPECT_EQ(keys.size(), made);
}

TEST(BlockHashTest, KeysAreShortAndOfOneLengthByKind) {
  for (const std::string& key : MustMake({}).HashTokens(Tokens(64))) EXPECT_EQ(key.size(), 32u);
  const BlockHasher fast = MustMake({}, HashKind::kXxh3);
  for (const std::string& key : fast.HashTokens(Tokens(64))) EXPECT_EQ(key.size(), 16u);
  EXPECT_EQ(fast.OwnKey(std::string(512, 'n'))->size(), 16u);
}

TEST(BlockHashTest, RefusesBadSizesAndNames) {
  for (const uint32_t bad : {0u, 15u, 513u})
    EXPECT_EQ(BlockHasher::Make({}, HashKind::kSha256, bad).status().code(),
              StatusCode::kInvalidArgument);
  EXPECT_EQ(MustMake({}).OwnKey("").status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(MustMake({}).OwnKey(std::string(512, 'n')).ok());
  EXPECT_FALSE(MustMake({}).OwnKey(std::string(513, 'n')).ok());
  KeyDomain bad_rank;
  bad_rank.tp_rank = 1;
  EXPECT_FALSE(BlockHasher::Make(bad_rank).ok());
  EXPECT_EQ(BlockHasher::Make({})->block_tokens(), 128u);
}

}  // namespace
}  // namespace ems::context
