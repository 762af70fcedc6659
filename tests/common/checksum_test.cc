// What must hold: the checksum of a payload does not depend on how its bytes arrived, follows from
// the table of its pieces, and changes with any bit.
#include "common/checksum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "tests/common/random_bytes.h"

namespace ems {
namespace {

const std::vector<size_t> kSizes = {
    0, 1, kPieceBytes - 1, kPieceBytes, kPieceBytes + 1, 2 * kPieceBytes, 3 * kPieceBytes + 17};

TEST(ChecksumTest, PieceCountIsOneForTheEmptyPayloadAndRoundsUp) {
  EXPECT_EQ(PieceCount(0), 1U);
  EXPECT_EQ(PieceCount(kPieceBytes), 1U);
  EXPECT_EQ(PieceCount(kPieceBytes + 1), 2U);
  EXPECT_EQ(PieceCount(64 * kMiB), 1024U);
}

TEST(ChecksumTest, HasherGivesTheSameForPartsOfAnySize) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(fmt::format("seed {}", seed));
  std::mt19937_64 random(seed);
  PieceHasher hasher;
  for (const size_t size : kSizes) {
    const std::vector<std::byte> payload = RandomBytes(size, seed);
    for (const size_t part_max : {size_t{1000}, size_t{70'000}, size + 1}) {
      hasher.Start({});
      for (size_t at = 0; at < size;) {
        const size_t part = std::min<size_t>(size - at, 1 + random() % part_max);
        hasher.Update(ConstBytes(payload).subspan(at, part));
        at += part;
      }
      EXPECT_EQ(hasher.Finish(), Checksum(payload)) << size << " bytes, parts up to " << part_max;
    }
  }
}

TEST(ChecksumTest, ARangeHasTheChecksumOfItsBytesAsTheyArrive) {
  for (const size_t size : kSizes) {
    std::vector<std::byte> payload = RandomBytes(size, 9);
    std::vector<uint64_t> sums(PieceCount(size));
    HashPieces(payload, sums);
    std::vector<uint64_t> cuts = {0, 1, size / 2, size};
    for (uint64_t at = kPieceBytes; at <= size; at += kPieceBytes) cuts.push_back(at);
    for (const uint64_t from : cuts) {
      for (const uint64_t to : cuts) {
        if (from > to || to > size) continue;
        PieceHasher hasher;
        hasher.Start({}, kPieceBytes - from % kPieceBytes);
        hasher.Update(ConstBytes(payload).subspan(from, to - from));
        EXPECT_EQ(RangeChecksum(payload, sums, from, to - from), hasher.Finish())
            << from << " to " << to << " of " << size;
      }
    }
    if (size < 2) continue;
    payload[0] ^= std::byte{1};
    EXPECT_EQ(RangeChecksum(payload, sums, 1, 1), std::nullopt) << "an edge piece is damaged";
  }
}

TEST(ChecksumTest, TableOfPiecesCombinesToTheChecksum) {
  PieceHasher hasher;
  for (const size_t size : kSizes) {
    const std::vector<std::byte> payload = RandomBytes(size, 7);
    std::vector<uint64_t> table(PieceCount(size));
    hasher.Start(table);
    hasher.Update(payload);
    const uint64_t checksum = hasher.Finish();
    EXPECT_EQ(checksum, Checksum(payload)) << size;
    EXPECT_EQ(checksum, CombinePieces(table)) << size;
    for (size_t i = 0; i < table.size(); ++i) {
      const size_t at = i * kPieceBytes;
      EXPECT_EQ(table[i],
                Hash64(ConstBytes(payload).subspan(at, std::min<size_t>(kPieceBytes, size - at))));
    }
  }
}

TEST(ChecksumTest, RangeThatStartsInsideAPieceIsCutAtTheValuesPieceBoundaries) {
  const std::vector<std::byte> payload = RandomBytes(3 * kPieceBytes, 11);
  const size_t offset = 1000;
  const ConstBytes range = ConstBytes(payload).subspan(offset);
  std::vector<uint64_t> table(3);
  PieceHasher hasher;
  hasher.Start(table, kPieceBytes - offset);
  hasher.Update(range);
  const uint64_t checksum = hasher.Finish();
  EXPECT_EQ(table[0], Hash64(range.first(kPieceBytes - offset)));
  EXPECT_EQ(table[1], Hash64(ConstBytes(payload).subspan(kPieceBytes, kPieceBytes)));
  EXPECT_EQ(checksum, CombinePieces(table));
}

TEST(ChecksumTest, AnyFlippedBitChangesIt) {
  std::vector<std::byte> payload = RandomBytes(2 * kPieceBytes + 5, 13);
  const uint64_t before = Checksum(payload);
  for (const size_t at :
       {size_t{0}, size_t{kPieceBytes - 1}, size_t{kPieceBytes}, payload.size() - 1}) {
    payload[at] ^= std::byte{1};
    EXPECT_NE(Checksum(payload), before) << at;
    payload[at] ^= std::byte{1};
  }
  EXPECT_EQ(Checksum(payload), before);
}

TEST(ChecksumDeathTest, TableThatIsTooSmallIsOurBug) {
  const std::vector<std::byte> payload = RandomBytes(2 * kPieceBytes, 17);
  std::vector<uint64_t> table(1);
  PieceHasher hasher;
  hasher.Start(table);
  EXPECT_DEATH(hasher.Update(payload), "piece_count_ < table_.size");
}

}  // namespace
}  // namespace ems
