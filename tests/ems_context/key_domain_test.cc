#include "ems_context/key_domain.h"

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/bytes.h"
#include "ems_context/block_hash.h"

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

// Text that is made to be confused: fields of others, lengths, tags, encodings of whole domains.
class RandomDomains final {
 public:
  KeyDomain Next() {
    KeyDomain domain;
    domain.model = Text();
    domain.dtype = Text();
    domain.kv_layout = Text();
    domain.tp_size = 1 + Below(4), domain.tp_rank = Below(domain.tp_size);
    domain.pp_size = 1 + Below(4), domain.pp_rank = Below(domain.pp_size);
    domain.lora = Text();
    domain.cache_salt = Text();
    for (uint32_t i = Below(3); i > 0; --i) domain.multimodal_hashes.push_back(Text());
    for (uint32_t i = Below(3); i > 0; --i) domain.custom.emplace_back(Text(), Text());
    return domain;
  }
  // Changes the field of that number, of kFields; the domain stays valid.
  static constexpr uint32_t kFields = 11;
  void Change(uint32_t field, KeyDomain* d) {
    std::string* const texts[] = {&d->model, &d->dtype, &d->kv_layout, &d->lora, &d->cache_salt};
    if (field < 5) return ChangeText(texts[field]);
    if (field == 5) return static_cast<void>(d->tp_size += 1 + Below(3));
    if (field == 6) return static_cast<void>(d->pp_size += 1 + Below(3));
    if (field == 7) return Rotate(&d->tp_rank, &d->tp_size);
    if (field == 8) return Rotate(&d->pp_rank, &d->pp_size);
    if (field == 9) return ChangeList(&d->multimodal_hashes, [&] { return Text(); });
    ChangeList(&d->custom, [&] { return std::pair(Text(), Text()); });
  }
  uint32_t Below(uint32_t end) { return static_cast<uint32_t>(random_() % end); }

 private:
  std::string Text() {
    switch (Below(6)) {
      case 0:
        return {};
      case 1:
        return std::string(1 + Below(3), 'a');
      case 2:
        return std::string(Below(5), '\0');
      case 3:
        return MustEncode(KeyDomain{}).substr(Below(30), Below(40));
      default: {
        std::string text;
        for (uint32_t i = Below(9); i > 0; --i) text.push_back(static_cast<char>(Below(12)));
        return text;
      }
    }
  }
  void ChangeText(std::string* text) {
    const std::string before = *text;
    while (*text == before) *text = Text();
  }
  // Another rank; a size of one has none, so it grows with it.
  void Rotate(uint32_t* rank, uint32_t* size) {
    if (*size == 1) return static_cast<void>(*size = 2, *rank = 1);
    *rank = (*rank + 1) % *size;
  }
  template <typename T, typename MakeOne>
  void ChangeList(std::vector<T>* list, MakeOne make) {
    const std::vector<T> before = *list;
    while (*list == before) {
      if (!list->empty() && Below(2) == 0)
        list->erase(list->begin() + Below(static_cast<uint32_t>(list->size())));
      else
        list->insert(list->begin() + Below(static_cast<uint32_t>(list->size()) + 1), make());
    }
  }

  std::mt19937_64 random_{41};
};

TEST(KeyDomainTest, DomainsThatDifferInAnyFieldNeverShareAKey) {
  RandomDomains domains;
  const std::vector<int32_t> tokens(64, 5);
  for (int round = 0; round < 400; ++round) {
    const KeyDomain one = domains.Next();
    for (uint32_t field = 0; field < RandomDomains::kFields; ++field) {
      KeyDomain other = one;
      domains.Change(field, &other);
      ASSERT_FALSE(one == other) << "round " << round << " field " << field;
      ASSERT_NE(MustEncode(one), MustEncode(other)) << "round " << round << " field " << field;
      for (const HashKind kind : {HashKind::kSha256, HashKind::kXxh3}) {
        const auto of_one = BlockHasher::Make(one, kind, 16);
        const auto of_other = BlockHasher::Make(other, kind, 16);
        std::set<std::string> keys;
        for (const auto* hasher : {&*of_one, &*of_other}) {
          for (std::string& key : hasher->HashTokens(tokens)) keys.insert(std::move(key));
          keys.insert(*hasher->OwnKey("name"));
        }
        ASSERT_EQ(keys.size(), 10u) << "round " << round << " field " << field;
      }
    }
  }
}

// Any two of many, whichever fields they differ in.
TEST(KeyDomainTest, ManyRandomDomainsHaveAsManyEncodings) {
  RandomDomains domains;
  std::map<std::string, KeyDomain> by_encoding;
  for (int i = 0; i < 50'000; ++i) {
    const KeyDomain domain = domains.Next();
    const auto [there, fresh] = by_encoding.emplace(MustEncode(domain), domain);
    ASSERT_TRUE(fresh || there->second == domain);
  }
  EXPECT_GT(by_encoding.size(), 40'000u);
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
  long_field.cache_salt = std::string(size_t{64} * 1024, 's');
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
