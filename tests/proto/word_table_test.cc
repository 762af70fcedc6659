// What must hold: a table comes back as it was told, and bytes that are none are refused before
// anything is made of them.
#include "proto/word_table.h"

#include <gtest/gtest.h>

namespace ems::wire {
namespace {

WordTable MakeTable(uint32_t words) {
  WordTable table{.view = ViewVersion(3, 7), .fingerprint = 99, .words = {}};
  for (uint32_t i = 0; i < words; ++i) table.words.push_back({100 + i, i, 10 * i});
  return table;
}

std::vector<std::byte> Encode(const WordTable& table) {
  std::vector<std::byte> body;
  AppendTo(table, &body);
  return body;
}

TEST(WordTableTest, ComesBackAsItWasTold) {
  for (const uint32_t words : {0U, 1U, 1000U}) {
    const auto body = Encode(MakeTable(words));
    EXPECT_EQ(body.size(), 24 + 16 * words);
    const auto table = ParseWordTable(body);
    ASSERT_TRUE(table.ok());
    EXPECT_EQ(table->view, ViewVersion(3, 7));
    EXPECT_EQ(table->fingerprint, 99U);
    ASSERT_EQ(table->words.size(), words);
    for (uint32_t i = 0; i < words; ++i) {
      EXPECT_EQ(table->words[i].boot_id, 100 + i);
      EXPECT_EQ(table->words[i].node_id, i);
      EXPECT_EQ(table->words[i].age_us, 10 * i);
    }
  }
}

TEST(WordTableTest, NothingIsAnEmptyTable) {
  const auto table = ParseWordTable({});
  ASSERT_TRUE(table.ok());
  EXPECT_EQ(table->view, ViewVersion());
  EXPECT_TRUE(table->words.empty());
}

TEST(WordTableTest, LengthsThatDoNotFitAreRefused) {
  const auto body = Encode(MakeTable(3));
  for (size_t bytes = 1; bytes < body.size(); ++bytes)
    EXPECT_EQ(ParseWordTable(ConstBytes(body).first(bytes)).status().code(), StatusCode::kDataLoss)
        << bytes;
  auto longer = body;
  longer.push_back(std::byte{0});
  EXPECT_EQ(ParseWordTable(longer).status().code(), StatusCode::kDataLoss);
}

TEST(WordTableTest, AnyCountIsBounded) {
  auto body = Encode(MakeTable(1));
  for (const uint32_t count : {0U, 2U, kWordsMax + 1, 0x10000001U, UINT32_MAX}) {
    std::memcpy(body.data() + offsetof(WordTableHead, count), &count, sizeof(count));
    EXPECT_EQ(ParseWordTable(body).status().code(), StatusCode::kDataLoss) << count;
  }
  const auto too_many = Encode(MakeTable(kWordsMax + 1));
  EXPECT_EQ(too_many.size(), kWordTableBytesMax) << "the rest is left out";
  EXPECT_TRUE(ParseWordTable(too_many).ok());
  std::vector<std::byte> larger(kWordTableBytesMax + sizeof(PeerWord));
  const WordTableHead head{.count = kWordsMax + 1};
  std::memcpy(larger.data(), &head, sizeof(head));
  EXPECT_EQ(ParseWordTable(larger).status().code(), StatusCode::kDataLoss);
}

}  // namespace
}  // namespace ems::wire
