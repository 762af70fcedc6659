#include "ems_context/key_domain.h"

#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <string>

#include "common/bytes.h"

namespace ems::context {
namespace {

std::string MustEncode(const KeyDomain& domain) {
  const auto encoded = EncodeDomain(domain);
  EXPECT_TRUE(encoded.ok()) << ToString(encoded.status());
  return encoded.ok() ? *encoded : "";
}

// Stored keys depend on these bytes: they never change.
TEST(KeyDomainTest, EncodingIsFrozen) {
  KeyDomain domain;
  domain.model = "m";
  EXPECT_EQ(
      ToHex(AsBytes(MustEncode(domain))),
      "656d732e6b762e646f6d61696e2e763101010000006d02000000000300000000040000000005010000000600"
      "0000000701000000080000000009000000000a000000000b00000000");
}

TEST(KeyDomainTest, EachFieldCounts) {
  const std::vector<std::function<void(KeyDomain*)>> changes = {
      [](KeyDomain*) {},
      [](KeyDomain* d) { d->model = "x"; },
      [](KeyDomain* d) { d->dtype = "x"; },
      [](KeyDomain* d) { d->kv_layout = "x"; },
      [](KeyDomain* d) { d->tp_rank = 1; },
      [](KeyDomain* d) { d->tp_size = 4; },
      [](KeyDomain* d) { d->pp_rank = 1; },
      [](KeyDomain* d) { d->pp_size = 4; },
      [](KeyDomain* d) { d->lora = "x"; },
      [](KeyDomain* d) { d->cache_salt = "x"; },
      [](KeyDomain* d) { d->multimodal_hashes = {"x"}; },
      [](KeyDomain* d) { d->multimodal_hashes = {""}; },
      [](KeyDomain* d) {
        d->custom = {{"x", ""}};
      },
      [](KeyDomain* d) {
        d->custom = {{"", "x"}};
      },
      [](KeyDomain* d) {
        d->custom = {{"", ""}};
      },
  };
  std::set<std::string> encodings;
  for (const auto& change : changes) {
    KeyDomain domain;
    domain.tp_size = 2;
    domain.pp_size = 2;
    change(&domain);
    encodings.insert(MustEncode(domain));
  }
  EXPECT_EQ(encodings.size(), changes.size());
}

// What must hold: bytes cannot move from one field or entry to the next.
TEST(KeyDomainTest, SplitsOfTheSameTextDiffer) {
  const std::string text = "abcd";
  std::set<std::string> encodings;
  size_t splits = 0;
  for (size_t a = 0; a <= text.size(); ++a) {
    for (size_t b = a; b <= text.size(); ++b) {
      const std::string first = text.substr(0, a);
      const std::string second = text.substr(a, b - a);
      const std::string third = text.substr(b);
      KeyDomain fields;
      fields.model = first, fields.dtype = second, fields.kv_layout = third;
      KeyDomain tail;
      tail.lora = first, tail.cache_salt = second, tail.multimodal_hashes = {third};
      KeyDomain list;
      list.multimodal_hashes = {first, second, third};
      KeyDomain custom;
      custom.custom = {{first, second}, {third, ""}};
      for (const KeyDomain& domain : {fields, tail, list, custom}) {
        encodings.insert(MustEncode(domain));
        ++splits;
      }
    }
  }
  EXPECT_EQ(encodings.size(), splits);
}

TEST(KeyDomainTest, TextThatLooksLikeAnEncodingStaysInItsField) {
  KeyDomain inner;
  inner.dtype = "bf16";
  KeyDomain outer;
  outer.model = MustEncode(inner).substr(21);  // what follows the model's length
  EXPECT_NE(MustEncode(outer), MustEncode(inner));
}

TEST(KeyDomainTest, RefusesWhatIsOutOfBounds) {
  KeyDomain rank;
  rank.tp_rank = 8, rank.tp_size = 8;
  EXPECT_EQ(EncodeDomain(rank).status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(Message(EncodeDomain(rank).status()).find("tp_rank 8"), std::string_view::npos);
  KeyDomain no_ranks;
  no_ranks.pp_size = 0;
  EXPECT_EQ(EncodeDomain(no_ranks).status().code(), StatusCode::kInvalidArgument);
  KeyDomain long_field;
  long_field.cache_salt = std::string(64 * 1024, 's');
  EXPECT_TRUE(EncodeDomain(long_field).ok());
  long_field.cache_salt += 's';
  EXPECT_NE(Message(EncodeDomain(long_field).status()).find("cache_salt"), std::string_view::npos);
  KeyDomain long_list;
  long_list.multimodal_hashes.resize(4096);
  EXPECT_TRUE(EncodeDomain(long_list).ok());
  long_list.multimodal_hashes.resize(4097);
  EXPECT_FALSE(EncodeDomain(long_list).ok());
}

}  // namespace
}  // namespace ems::context
