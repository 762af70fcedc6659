// What must hold: a list of keys comes back as it was told, and bytes that are none are refused
// before anything is made of them.
#include "proto/key_page.h"

#include <gtest/gtest.h>

#include <cstring>

namespace ems::wire {
namespace {

KeyPage MakePage(uint32_t keys) {
  KeyPage page{.keys = {}, .next = ScanCursor{1, 2, 3}};
  for (uint32_t i = 0; i < keys; ++i) {
    page.keys.push_back({.key = "key-" + std::to_string(i),
                         .value_bytes = 100 + i,
                         .tier = i % 2 == 0 ? ItemTier::kDram : ItemTier::kSsd,
                         .age_ms = i,
                         .idle_ms = kUnknownMs});
  }
  return page;
}

std::vector<std::byte> Encode(const KeyPage& page) {
  std::vector<std::byte> body;
  AppendTo(page, &body);
  return body;
}

TEST(KeyPageTest, ComesBackAsItWasTold) {
  for (const uint32_t keys : {0U, 1U, 1000U}) {
    const auto page = ParseKeyPage(Encode(MakePage(keys)));
    ASSERT_TRUE(page.ok());
    EXPECT_EQ(page->next, (ScanCursor{1, 2, 3}));
    ASSERT_EQ(page->keys.size(), keys);
    for (uint32_t i = 0; i < keys; ++i) {
      EXPECT_EQ(page->keys[i].key, "key-" + std::to_string(i));
      EXPECT_EQ(page->keys[i].value_bytes, 100 + i);
      EXPECT_EQ(page->keys[i].tier, i % 2 == 0 ? ItemTier::kDram : ItemTier::kSsd);
      EXPECT_EQ(page->keys[i].age_ms, i);
      EXPECT_EQ(page->keys[i].idle_ms, kUnknownMs);
    }
  }
}

TEST(KeyPageTest, TheLastPageHasNoNext) {
  KeyPage last = MakePage(2);
  last.next.reset();
  const auto page = ParseKeyPage(Encode(last));
  ASSERT_TRUE(page.ok());
  EXPECT_FALSE(page->next);
}

TEST(KeyPageTest, LengthsThatDoNotFitAreRefused) {
  const auto body = Encode(MakePage(3));
  for (size_t bytes = 0; bytes < body.size(); ++bytes)
    EXPECT_FALSE(ParseKeyPage(ConstBytes(body).first(bytes)).ok()) << bytes;
  auto longer = body;
  longer.push_back(std::byte{0});
  EXPECT_FALSE(ParseKeyPage(longer).ok());
}

TEST(KeyPageTest, CountsKeysAndTiersThatCannotBeAreRefused) {
  const auto with = [](size_t at, auto value) {
    auto body = Encode(MakePage(1));
    std::memcpy(body.data() + at, &value, sizeof(value));
    return ParseKeyPage(body).status().code();
  };
  const size_t head = sizeof(ScanHead);
  EXPECT_EQ(with(offsetof(ScanHead, count), UINT32_MAX), StatusCode::kDataLoss);
  EXPECT_EQ(with(head + offsetof(KeyHead, key_bytes), uint16_t{0}), StatusCode::kDataLoss);
  EXPECT_EQ(with(head + offsetof(KeyHead, key_bytes), UINT16_MAX), StatusCode::kDataLoss);
  EXPECT_EQ(with(head + offsetof(KeyHead, tier), uint8_t{3}), StatusCode::kDataLoss);
  EXPECT_EQ(with(head + offsetof(KeyHead, tier), uint8_t{2}), StatusCode::kOk);
}

}  // namespace
}  // namespace ems::wire
