// What must hold: a read takes all blocks of a record and no other, and a value passes only if it
// is the one that the row was written for.
#include "mp_server/ssd/disk/stored_record.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/mp_server/ssd/ssd_fixture.h"

namespace ems::ssd {
namespace {

Row RowAt(uint64_t offset, uint64_t value_bytes, uint32_t key_bytes) {
  Row row;
  row.offset_units = static_cast<uint32_t>(offset / kPackUnit);
  row.value_bytes = value_bytes;
  row.key_bytes = key_bytes;
  return row;
}

TEST(RecordBlocksTest, CoverAPackedRecordWhereverItLies) {
  for (uint64_t offset = kBlockBytes; offset < 4 * kBlockBytes; offset += kPackUnit) {
    for (const uint64_t value : {uint64_t{0}, uint64_t{1}, uint64_t{3900}, kAlignedFrom - 1}) {
      const RecordBlocks blocks(RowAt(offset, value, 20));
      EXPECT_EQ(blocks.begin % kBlockBytes, 0U);
      EXPECT_EQ(blocks.begin + blocks.skip, offset);
      EXPECT_LT(blocks.skip, kBlockBytes);
      EXPECT_EQ(blocks.bytes() % kBlockBytes, 0U);
      const uint64_t end = blocks.skip + blocks.shape.record_bytes();
      EXPECT_GE(blocks.bytes(), end);
      EXPECT_LT(blocks.bytes() - end, kBlockBytes) << "no block more than needed";
    }
  }
}

TEST(RecordBlocksTest, TheHeadOfAnAlignedRecordEndsWhereItsPayloadBegins) {
  for (const uint64_t value : {kAlignedFrom, kAlignedFrom + 1, 64 * kMiB}) {
    const RecordBlocks blocks(RowAt(7 * kBlockBytes, value, 512));
    EXPECT_EQ(blocks.begin, 7 * kBlockBytes);
    EXPECT_EQ(blocks.skip, 0U);
    EXPECT_EQ(blocks.head_bytes(), blocks.shape.payload_offset());
    EXPECT_EQ(blocks.bytes(), blocks.head_bytes() + RoundUp(value, kBlockBytes));
  }
}

TEST(RecordBlocksTest, TheLastOffsetThatARowCanNameIsNotCutOff) {
  Row row = RowAt(0, 10, 3);
  row.offset_units = UINT32_MAX;
  const RecordBlocks blocks(row);
  EXPECT_EQ(blocks.begin + blocks.skip, uint64_t{UINT32_MAX} * kPackUnit);
}

TEST(ExpectTest, EachFieldOfARowIsExpectedOfTheRecord) {
  const auto object = testing::MakeObject("some key", 5, 3000);
  const ObjectName name = testing::NameOf("some key");
  Row row;
  row.sequence = 21;
  row.region_sequence = 22;
  row.value_checksum = object->checksum();
  row.value_bytes = 3000;
  row.region = 1;
  row.offset_units = 64;
  row.key_bytes = 8;
  row.slot = 9;
  RecordHeader header;
  header.slot = row.slot;
  header.store_id = testing::kStoreId;
  header.region_sequence = row.region_sequence;
  header.namespace_id = name.ns.id.value();
  header.namespace_generation = name.ns.generation;
  header.key_hash_lo = name.hash.lo;
  header.key_hash_hi = name.hash.hi;
  header.sequence = row.sequence;
  header.value_bytes = row.value_bytes;
  header.value_checksum = row.value_checksum;
  std::vector<std::byte> head(RecordShape(3000, 8).head_bytes());
  WriteHead(header, {}, object->key(), head);
  const auto verdict = [&](uint64_t store, const ObjectName& wanted, const Row& of) {
    return CheckHead(head, Expect(store, wanted, of)).verdict;
  };
  EXPECT_EQ(verdict(testing::kStoreId, name, row), HeadVerdict::kGood);
  EXPECT_EQ(verdict(testing::kStoreId + 1, name, row), HeadVerdict::kForeign);
  EXPECT_EQ(verdict(testing::kStoreId, testing::NameOf("other"), row), HeadVerdict::kMisplaced);
  const std::vector<std::pair<const char*, std::function<void(Row*)>>> others = {
      {"put", [](Row* r) { ++r->sequence; }},
      {"use of the region", [](Row* r) { ++r->region_sequence; }},
      {"checksum", [](Row* r) { ++r->value_checksum; }},
      {"value's length", [](Row* r) { --r->value_bytes; }},
      {"key's length", [](Row* r) { --r->key_bytes; }},
  };
  for (const auto& [what, change] : others) {
    Row other = row;
    change(&other);
    EXPECT_NE(verdict(testing::kStoreId, name, other), HeadVerdict::kGood) << what;
  }
}

class CheckValueTest : public ::testing::TestWithParam<uint64_t> {};

TEST_P(CheckValueTest, TheValueItselfPassesAndGivesItsPieceChecksums) {
  const auto object = testing::MakeObject("k", 1, GetParam());
  std::vector<uint64_t> sums(PieceCount(GetParam()));
  EXPECT_TRUE(CheckValue(object->value(), object->checksum(), sums));
  EXPECT_TRUE(std::equal(sums.begin(), sums.end(), object->piece_sums().begin()));
  EXPECT_EQ(CombinePieces(sums), object->checksum());
}

TEST_P(CheckValueTest, AnyOtherByteFails) {
  const auto object = testing::MakeObject("k", 1, GetParam());
  std::vector<std::byte> value(object->value().begin(), object->value().end());
  std::vector<uint64_t> sums(PieceCount(GetParam()));
  const size_t step = std::max<size_t>(1, value.size() / 40);
  for (size_t at = 0; at < value.size(); at += step) {
    value[at] ^= std::byte{1};
    EXPECT_FALSE(CheckValue(value, object->checksum(), sums)) << at;
    value[at] ^= std::byte{1};
  }
  EXPECT_FALSE(CheckValue(value, object->checksum() + 1, sums));
  if (value.empty()) return;
  EXPECT_FALSE(CheckValue(ConstBytes(value).first(value.size() - 1), object->checksum(), sums));
}

INSTANTIATE_TEST_SUITE_P(Sizes, CheckValueTest,
                         ::testing::Values(0, 1, 4096, kPieceBytes - 1, kPieceBytes,
                                           kPieceBytes + 1, 5 * kPieceBytes + 77));

}  // namespace
}  // namespace ems::ssd
