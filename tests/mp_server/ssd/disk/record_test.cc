// What must hold: the layouts stay what they are, and no head is taken for another one, whichever
// single bit of it is wrong.
#include "mp_server/ssd/disk/record.h"

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

namespace ems::ssd {
namespace {

static_assert(offsetof(RecordHeader, store_id) == 8 &&
              offsetof(RecordHeader, region_sequence) == 16 &&
              offsetof(RecordHeader, namespace_id) == 24 &&
              offsetof(RecordHeader, key_hash_lo) == 32 && offsetof(RecordHeader, sequence) == 48 &&
              offsetof(RecordHeader, value_bytes) == 56 &&
              offsetof(RecordHeader, value_checksum) == 64 &&
              offsetof(RecordHeader, key_bytes) == 72 &&
              offsetof(RecordHeader, head_checksum) == 80);
static_assert(offsetof(RegionHeader, store_id) == 8 && offsetof(RegionHeader, sequence) == 16 &&
              offsetof(RegionHeader, region) == 24 && offsetof(RegionHeader, namespace_id) == 28 &&
              offsetof(RegionHeader, namespace_generation) == 32 &&
              offsetof(RegionHeader, checksum) == 40);

// A head as it lies on the disk, and what a reader expects of it.
struct Sample {
  ExpectedRecord expected;
  std::vector<uint64_t> sums;  // as given to WriteHead: none for one piece
  std::string key;
  std::vector<std::byte> head;
};

RecordHeader HeaderOf(const ExpectedRecord& expected) {
  RecordHeader header;
  header.slot = 77;
  header.store_id = expected.store_id;
  header.region_sequence = expected.region_sequence;
  header.namespace_id = expected.name.ns.id.value();
  header.namespace_generation = expected.name.ns.generation;
  header.key_hash_lo = expected.name.hash.lo;
  header.key_hash_hi = expected.name.hash.hi;
  header.sequence = expected.sequence;
  header.value_bytes = expected.value_bytes;
  header.value_checksum = expected.value_checksum;
  return header;
}

Sample MakeSample(uint64_t value_bytes, const std::string& key) {
  Sample sample;
  sample.key = key;
  for (uint64_t i = 0; PieceCount(value_bytes) > 1 && i < PieceCount(value_bytes); ++i)
    sample.sums.push_back(0x1111'2222'3333'4444 * (i + 1));
  sample.expected.store_id = 0xabcdef;
  sample.expected.region_sequence = 41;
  sample.expected.name = {{NamespaceId(5), 6}, HashTo128(AsBytes(key))};
  sample.expected.sequence = 1234;
  sample.expected.value_bytes = value_bytes;
  sample.expected.value_checksum = 0x5a5a;
  sample.expected.key_bytes = static_cast<uint32_t>(key.size());
  sample.head.resize(RecordShape(value_bytes, key.size()).head_bytes());
  WriteHead(HeaderOf(sample.expected), sample.sums, key, sample.head);
  return sample;
}

HeadVerdict VerdictOf(const Sample& sample, const ExpectedRecord& expected) {
  std::vector<std::byte> longer = sample.head;
  longer.resize(longer.size() + 4096);  // as a reader has it: with what follows in the block
  return CheckHead(longer, expected).verdict;
}

void FlipBit(MutableBytes bytes, size_t bit) {
  bytes[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
}

TEST(RecordShapeTest, PackedRecordsLieCloseToEachOtherAndAlignedOnesInWholeBlocks) {
  for (const uint64_t value :
       {uint64_t{0}, uint64_t{1}, uint64_t{40}, kAlignedFrom - 1, kAlignedFrom, kAlignedFrom + 1,
        2 * kAlignedFrom, kMiB, kMiB + 1, 4 * kGiB}) {
    for (const uint64_t key : {1U, 24U, 512U}) {
      const RecordShape shape(value, key);
      const uint64_t unit = shape.aligned ? kBlockBytes : kPackUnit;
      EXPECT_EQ(shape.aligned, value >= kAlignedFrom) << value;
      EXPECT_EQ(shape.table_bytes, value <= kPieceBytes ? 0 : PieceCount(value) * 8) << value;
      EXPECT_EQ(shape.head_bytes(), 88 + shape.table_bytes + key);
      EXPECT_GE(shape.payload_offset(), shape.head_bytes());
      EXPECT_LT(shape.payload_offset() - shape.head_bytes(), shape.aligned ? kBlockBytes : 1);
      EXPECT_TRUE(!shape.aligned || shape.payload_offset() % kBlockBytes == 0) << value;
      EXPECT_EQ(shape.record_bytes() % unit, 0U) << value;
      EXPECT_GE(shape.record_bytes(), shape.payload_offset() + value);
      EXPECT_LT(shape.record_bytes() - shape.payload_offset() - value, unit) << value;
    }
  }
}

TEST(RecordTest, TheMagicNumbersCanBeReadInADump) {
  const Sample sample = MakeSample(100, "key");
  EXPECT_EQ(AsText(sample.head).substr(0, 4), "EMSO");
  std::array<std::byte, kBlockBytes> block;
  WriteRegionHeader({}, block);
  EXPECT_EQ(AsText(block).substr(0, 4), "EMSR");
}

TEST(RecordTest, AGoodHeadGivesItsPieceChecksumsAndItsKey) {
  for (const uint64_t value : {uint64_t{0}, uint64_t{100}, kPieceBytes, kPieceBytes + 1, kMiB}) {
    for (const size_t key_bytes : {1U, 7U, 512U}) {
      const Sample sample = MakeSample(value, std::string(key_bytes, '\xff'));
      const Head head = CheckHead(sample.head, sample.expected);
      ASSERT_EQ(head.verdict, HeadVerdict::kGood) << value << " " << key_bytes;
      EXPECT_EQ(head.key, sample.key);
      ASSERT_EQ(head.piece_sums.size(), sample.sums.size() * 8);
      if (!sample.sums.empty()) {
        EXPECT_EQ(std::memcmp(head.piece_sums.data(), sample.sums.data(), head.piece_sums.size()),
                  0);
      }
      EXPECT_EQ(VerdictOf(sample, sample.expected), HeadVerdict::kGood)
          << "whatever follows the head";
    }
  }
}

TEST(RecordTest, AHeadNeedsNoAlignment) {
  const Sample sample = MakeSample(3 * kPieceBytes, "some key");
  std::vector<std::byte> moved(sample.head.size() + 1);
  std::copy(sample.head.begin(), sample.head.end(), moved.begin() + 1);
  EXPECT_EQ(CheckHead(ConstBytes(moved).subspan(1), sample.expected).verdict, HeadVerdict::kGood);
}

TEST(RecordTest, EverySingleBitFlipOfAHeadIsCaught) {
  for (const Sample& sample : {MakeSample(100, "k"), MakeSample(kPieceBytes, std::string(9, 'x')),
                               MakeSample(5 * kPieceBytes, std::string(64, 'y'))}) {
    std::vector<std::byte> head = sample.head;
    for (size_t bit = 0; bit < head.size() * 8; ++bit) {
      FlipBit(head, bit);
      const Head checked = CheckHead(head, sample.expected);
      EXPECT_NE(checked.verdict, HeadVerdict::kGood) << "bit " << bit % 8 << " of byte " << bit / 8;
      EXPECT_TRUE(checked.key.empty() && checked.piece_sums.empty());
      FlipBit(head, bit);
    }
    EXPECT_EQ(CheckHead(head, sample.expected).verdict, HeadVerdict::kGood);
  }
}

TEST(RecordTest, ATornHeadIsCaughtWhereverItEnds) {
  const Sample sample = MakeSample(3 * kPieceBytes, std::string(300, 'k'));
  for (size_t written = 0; written < sample.head.size(); ++written) {
    // Zeros from a fresh file, or something old, behind what was written.
    for (const std::byte old : {std::byte{0}, std::byte{0xa7}}) {
      std::vector<std::byte> torn(sample.head.size(), old);
      std::copy_n(sample.head.begin(), written, torn.begin());
      if (torn == sample.head) continue;
      EXPECT_NE(CheckHead(torn, sample.expected).verdict, HeadVerdict::kGood) << written;
    }
  }
}

TEST(RecordTest, AHeadThatIsCutOffIsNone) {
  const Sample sample = MakeSample(2 * kPieceBytes, "a key");
  for (size_t bytes = 0; bytes < sample.head.size(); ++bytes) {
    EXPECT_EQ(CheckHead(ConstBytes(sample.head).first(bytes), sample.expected).verdict,
              HeadVerdict::kForeign);
  }
}

TEST(RecordTest, WhatIsNoRecordOfThisUseOfTheRegionIsForeign) {
  const Sample sample = MakeSample(100, "key");
  ExpectedRecord other_store = sample.expected;
  other_store.store_id ^= 1;
  EXPECT_EQ(VerdictOf(sample, other_store), HeadVerdict::kForeign);
  ExpectedRecord other_use = sample.expected;
  other_use.region_sequence += 1;
  EXPECT_EQ(VerdictOf(sample, other_use), HeadVerdict::kForeign);

  const std::vector<std::byte> zeros(kBlockBytes);
  EXPECT_EQ(CheckHead(zeros, sample.expected).verdict, HeadVerdict::kForeign);
  EXPECT_EQ(CheckHead(zeros, ExpectedRecord()).verdict, HeadVerdict::kForeign)
      << "even when nothing is expected";
  std::vector<std::byte> newer(sample.head.size());
  RecordHeader header = HeaderOf(sample.expected);
  header.version = kFormatVersion + 1;
  WriteHead(header, {}, sample.key, newer);
  EXPECT_EQ(CheckHead(newer, sample.expected).verdict, HeadVerdict::kForeign);
}

TEST(RecordTest, ASoundRecordOfSomethingElseIsMisplaced) {
  const Sample sample = MakeSample(kPieceBytes + 9, "a key of some length");
  const std::vector<std::pair<const char*, std::function<void(ExpectedRecord*)>>> others = {
      {"namespace", [](ExpectedRecord* e) { e->name.ns.id = NamespaceId(6); }},
      {"generation", [](ExpectedRecord* e) { ++e->name.ns.generation; }},
      {"low half of the hash", [](ExpectedRecord* e) { e->name.hash.lo ^= 1; }},
      {"high half of the hash", [](ExpectedRecord* e) { e->name.hash.hi ^= uint64_t{1} << 63; }},
      {"older put", [](ExpectedRecord* e) { --e->sequence; }},
      {"newer put", [](ExpectedRecord* e) { ++e->sequence; }},
      {"shorter value", [](ExpectedRecord* e) { --e->value_bytes; }},
      {"value of fewer pieces", [](ExpectedRecord* e) { e->value_bytes = 9; }},
      {"longer value", [](ExpectedRecord* e) { e->value_bytes += kPieceBytes; }},
      {"value", [](ExpectedRecord* e) { e->value_checksum ^= 1; }},
      {"shorter key", [](ExpectedRecord* e) { --e->key_bytes; }},
      {"longer key", [](ExpectedRecord* e) { ++e->key_bytes; }},
  };
  for (const auto& [what, change] : others) {
    ExpectedRecord expected = sample.expected;
    change(&expected);
    EXPECT_EQ(VerdictOf(sample, expected), HeadVerdict::kMisplaced) << what;
  }
}

TEST(RecordTest, TheRightRecordThatDoesNotMatchItsChecksumIsDamaged) {
  const Sample sample = MakeSample(2 * kPieceBytes, "key");
  for (const size_t byte :
       {offsetof(RecordHeader, slot), offsetof(RecordHeader, reserved),
        offsetof(RecordHeader, head_checksum), sizeof(RecordHeader), sample.head.size() - 1}) {
    Sample damaged = sample;
    FlipBit(damaged.head, byte * 8);
    EXPECT_EQ(VerdictOf(damaged, sample.expected), HeadVerdict::kDamaged) << "byte " << byte;
  }
}

TEST(RecordTest, AnotherKeyOfTheSameHashAndLengthComesBackAsItself) {
  Sample sample = MakeSample(100, "the key");
  WriteHead(HeaderOf(sample.expected), {}, "THE KEY", sample.head);
  const Head head = CheckHead(sample.head, sample.expected);
  ASSERT_EQ(head.verdict, HeadVerdict::kGood);
  EXPECT_EQ(head.key, "THE KEY") << "so that its reader can tell";
}

class RegionHeaderTest : public ::testing::Test {
 protected:
  RegionHeaderTest() {
    written_.store_id = 99;
    written_.sequence = 12;
    written_.region = 3;
    written_.namespace_id = 4;
    written_.namespace_generation = 5;
    block_.fill(std::byte{0xcc});
    WriteRegionHeader(written_, block_);
  }
  RegionHeader written_;
  std::array<std::byte, kBlockBytes> block_;
};

TEST_F(RegionHeaderTest, ComesBackAndLeavesNothingElseInItsBlock) {
  RegionHeader header;
  ASSERT_TRUE(ReadRegionHeader(block_, &header));
  EXPECT_EQ(header.store_id, 99U);
  EXPECT_EQ(header.sequence, 12U);
  EXPECT_EQ(header.region, 3U);
  EXPECT_EQ(header.namespace_id, 4U);
  EXPECT_EQ(header.namespace_generation, 5U);
  for (size_t i = sizeof(header); i < block_.size(); ++i) ASSERT_EQ(block_[i], std::byte{0}) << i;
}

TEST_F(RegionHeaderTest, EverySingleBitFlipIsCaught) {
  RegionHeader header;
  for (size_t bit = 0; bit < sizeof(header) * 8; ++bit) {
    FlipBit(block_, bit);
    EXPECT_FALSE(ReadRegionHeader(block_, &header)) << "bit " << bit;
    FlipBit(block_, bit);
  }
  EXPECT_TRUE(ReadRegionHeader(block_, &header));
}

TEST_F(RegionHeaderTest, APieceOfOneIsNone) {
  RegionHeader header;
  for (size_t bytes = 0; bytes < sizeof(header); ++bytes)
    EXPECT_FALSE(ReadRegionHeader(ConstBytes(block_).first(bytes), &header)) << bytes;
}

TEST_F(RegionHeaderTest, ANumberThatNoStoreReachesIsNone) {
  RegionHeader read;
  written_.sequence = kSequenceMax;
  WriteRegionHeader(written_, block_);
  EXPECT_TRUE(ReadRegionHeader(block_, &read));
  ++written_.sequence;
  WriteRegionHeader(written_, block_);
  EXPECT_FALSE(ReadRegionHeader(block_, &read));
}

TEST_F(RegionHeaderTest, ZerosAndNewerFormatsAreNone) {
  RegionHeader header;
  EXPECT_FALSE(ReadRegionHeader(std::vector<std::byte>(kBlockBytes), &header));
  written_.version = kFormatVersion + 1;
  WriteRegionHeader(written_, block_);
  EXPECT_FALSE(ReadRegionHeader(block_, &header));
}

}  // namespace
}  // namespace ems::ssd
