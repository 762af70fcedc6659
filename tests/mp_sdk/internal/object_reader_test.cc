// What must hold: what is reported as a hit is one whole value of that key; a miss is reported only
// when the index proves it; whatever lies in the memory, nothing outside of it is touched.
#include "mp_sdk/internal/object_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "common/checksum.h"
#include "common/object_key.h"
#include "tests/support/pool_image.h"
#include "tests/support/self_verifying.h"

namespace ems::internal {
namespace {

using shm::ChunkState;
using testing::MakeValue;
using testing::PlainMemory;
using testing::PoolImage;

MutableBytes Room(std::string* text) { return std::as_writable_bytes(std::span(*text)); }

struct ReaderTest : ::testing::Test {
  ObjectReader reader(uint64_t view = PoolImage::kView) const { return {&image, &identity, view}; }
  ReadOutcome Find(std::string_view key) { return reader().Find(key, KeyHash(key), &found); }
  ReadOutcome Read(std::string_view key, const CopyRequest& request) {
    return reader().Read(key, KeyHash(key), request, &found);
  }
  ReadOutcome Grow(std::string_view key, std::string* value) {
    return Read(key, {.into = {}, .grow = value});
  }
  ReadOutcome Range(std::string_view key, uint64_t offset, std::string* value) {
    return Read(key, {.into = Room(value), .ranged = true, .offset = offset});
  }

  PoolImage image{4 * kMiB};
  PoolIdentity identity = image.identity();
  FoundObject found;
};

TEST_F(ReaderTest, FindsAValueAndCopiesIt) {
  const std::string value = MakeValue("ns", "key", 1, 5000);
  image.Put(640, "key", value, 9);
  EXPECT_EQ(Find("key"), ReadOutcome::kHit);
  EXPECT_EQ(found.payload_bytes, value.size());
  std::string copy;
  EXPECT_EQ(Grow("key", &copy), ReadOutcome::kHit);
  EXPECT_EQ(copy, value);
}

TEST_F(ReaderTest, SizesAroundPiecesAreVerified) {
  for (const size_t bytes : {size_t{0}, size_t{1}, kPieceBytes - 1, kPieceBytes, kPieceBytes + 1,
                             3 * kPieceBytes, size_t{1000000}}) {
    const std::string key = "key" + std::to_string(bytes);
    const std::string value = MakeValue("ns", key, 1, bytes);
    image.Put(0, key, value, bytes + 1);
    std::string copy;
    EXPECT_EQ(Grow(key, &copy), ReadOutcome::kHit) << bytes;
    EXPECT_EQ(copy, value);
  }
}

TEST_F(ReaderTest, ScattersOverThePartsOfTheRoom) {
  const std::string value = MakeValue("ns", "key", 1, 200'000);
  image.Put(0, "key", value, 9);
  std::string a(70'000, '\0'), b(1, '\0'), c(140'000, '\0');
  const std::vector<MutableBytes> parts = {Room(&a), {}, Room(&b), Room(&c)};
  EXPECT_EQ(Read("key", {.into = std::span(parts)}), ReadOutcome::kHit);
  EXPECT_EQ((a + b + c).substr(0, value.size()), value);
}

TEST_F(ReaderTest, ARoomThatIsTooSmallLearnsTheLength) {
  image.Put(0, "key", std::string(100, 'x'), 9);
  std::string small(99, '\0');
  EXPECT_EQ(Read("key", {.into = Room(&small)}), ReadOutcome::kTooSmall);
  EXPECT_EQ(found.payload_bytes, 100U);
}

TEST_F(ReaderTest, RangesAreCopiedAndVerifiedByTheirPieces) {
  const std::string value = MakeValue("ns", "key", 1, 3 * kPieceBytes + 777);
  image.Put(0, "key", value, 9);
  for (const auto& [offset, length] : {std::pair<uint64_t, uint64_t>{0, 1},
                                       {0, value.size()},
                                       {kPieceBytes - 1, 2},
                                       {kPieceBytes, kPieceBytes},
                                       {100, 150'000},
                                       {value.size() - 1, 1},
                                       {value.size(), 0},
                                       {3 * kPieceBytes, 777}}) {
    std::string part(length, '\0');
    EXPECT_EQ(Range("key", offset, &part), ReadOutcome::kHit) << offset << " " << length;
    EXPECT_EQ(part, value.substr(offset, length));
  }
  std::string beyond(2, '\0');
  EXPECT_EQ(Range("key", value.size() - 1, &beyond), ReadOutcome::kOutOfRange);
  EXPECT_EQ(Range("key", UINT64_MAX, &beyond), ReadOutcome::kOutOfRange);
}

TEST_F(ReaderTest, ARangeOfASinglePieceIsVerifiedByTheWholeValue) {
  const std::string value = MakeValue("ns", "key", 1, 10'000);
  image.Put(0, "key", value, 9);
  std::string part(100, '\0');
  EXPECT_EQ(Range("key", 5000, &part), ReadOutcome::kHit);
  EXPECT_EQ(part, value.substr(5000, 100));
}

TEST_F(ReaderTest, FlippedBitsOfTheValueAreFound) {
  const std::string value = MakeValue("ns", "key", 1, 2 * kPieceBytes);
  image.Put(0, "key", value, 9);
  std::byte& flipped =
      image.segment_file().bytes()[image.header(0).payload_offset + kPieceBytes + 5];
  flipped ^= std::byte{1};
  std::string copy;
  EXPECT_EQ(Grow("key", &copy), ReadOutcome::kMismatch);
  EXPECT_EQ(Read("key", {.into = {}, .grow = &copy, .verify = false}), ReadOutcome::kHit);
  std::string first(10, '\0'), second(10, '\0');
  EXPECT_EQ(Range("key", 0, &first), ReadOutcome::kHit) << "its piece is intact";
  EXPECT_EQ(Range("key", kPieceBytes + 1000, &second), ReadOutcome::kMismatch);
}

TEST(SharedReadTest, AValueThatSeveralCopyIsWholeAndDamageAnywhereInItIsFound) {
  PoolImage image{16 * kMiB};
  const PoolIdentity identity = image.identity();
  CopyCrew crew("crew", 2);
  const std::string value =
      MakeValue("ns", "key", 1, CopyCrew::kValueBytesMin + 3 * kPieceBytes + 777);
  image.Put(0, "key", value, 9);
  FoundObject found;
  const auto read = [&](const std::vector<MutableBytes>& parts, bool verify = true) {
    return ObjectReader(&image, &identity, PoolImage::kView)
        .Read("key", KeyHash("key"), {.into = std::span(parts), .verify = verify, .crew = &crew},
              &found);
  };
  // Parts that begin and end within shares.
  std::string a(70'001, '\0'), b(3 * kMiB, '\0'), c(value.size() - a.size() - b.size() + 10, '\0');
  const std::vector<MutableBytes> parts = {Room(&a), {}, Room(&b), Room(&c)};
  EXPECT_EQ(read(parts), ReadOutcome::kHit);
  EXPECT_EQ((a + b + c).substr(0, value.size()), value);
  std::string copy;
  EXPECT_EQ(ObjectReader(&image, &identity, PoolImage::kView)
                .Read("key", KeyHash("key"), {.into = {}, .grow = &copy, .crew = &crew}, &found),
            ReadOutcome::kHit);
  EXPECT_EQ(copy, value);
  for (const uint64_t at : {uint64_t{0}, 2 * CopyCrew::kShareBytes + 5, value.size() - 1}) {
    std::byte& flipped = image.segment_file().bytes()[image.header(0).payload_offset + at];
    flipped ^= std::byte{1};
    EXPECT_EQ(read(parts), ReadOutcome::kMismatch) << at;
    EXPECT_EQ(read(parts, false), ReadOutcome::kHit) << at;
    flipped ^= std::byte{1};
  }
  EXPECT_EQ(read(parts), ReadOutcome::kHit);
}

TEST_F(ReaderTest, NoEntryIsAMissOnlyWhenTheIndexIsCompleteAndOfTheSameView) {
  EXPECT_EQ(Find("none"), ReadOutcome::kMiss);
  const uint64_t older = PoolImage::kView - 1;
  EXPECT_EQ(reader(older).Find("none", KeyHash("none"), &found), ReadOutcome::kNotConclusive);
  image.page().shards[shm::ShardOf(KeyHash("none"))] = shm::ShardWord(PoolImage::kTableId, true);
  EXPECT_EQ(Find("none"), ReadOutcome::kNotConclusive);
  image.page().shards[shm::ShardOf(KeyHash("none"))] = shm::ShardWord(0, false);
  EXPECT_EQ(Find("none"), ReadOutcome::kNotConclusive);
}

TEST_F(ReaderTest, AnIncompleteIndexStillHits) {
  image.Put(0, "key", "value", 9);
  image.page().shards[shm::ShardOf(KeyHash("key"))] = shm::ShardWord(PoolImage::kTableId, true);
  EXPECT_EQ(Find("key"), ReadOutcome::kHit);
}

TEST_F(ReaderTest, MemoriesThatAreNotHereAreNamed) {
  image.Put(0, "key", "value", 9);
  image.seen_segment = nullptr;
  EXPECT_EQ(Find("key"), ReadOutcome::kNeedSegment);
  EXPECT_EQ(found.needed, PoolImage::kSegmentId);
  image.seen_table = nullptr;
  EXPECT_EQ(Find("key"), ReadOutcome::kNeedTable);
  EXPECT_EQ(found.needed, PoolImage::kTableId);
}

TEST_F(ReaderTest, AnIndexThatIsOldClosedOrOutOfItsLeaseIsNotRead) {
  const TimePoint now{Duration(1000)};
  EXPECT_TRUE(reader().IsCurrent(now));
  EXPECT_TRUE(reader(PoolImage::kView - 1).IsCurrent(now)) << "a server may be ahead";
  EXPECT_FALSE(reader(PoolImage::kView + 1).IsCurrent(now));
  image.page().readable_until_ns = 1000;
  EXPECT_TRUE(reader().IsCurrent(now));
  image.page().readable_until_ns = 999;
  EXPECT_FALSE(reader().IsCurrent(now));
  image.page().readable_until_ns = INT64_MAX;
  image.page().closed = 1;
  EXPECT_FALSE(reader().IsCurrent(now));
}

TEST_F(ReaderTest, TheFullKeyDecides) {
  image.Put(0, "key", "value", 9);
  // The entry of another key with the same hash and tag.
  image.header(0).key_bytes = 2;
  PoolImage::Seal(&image.header(0));
  EXPECT_EQ(Find("key"), ReadOutcome::kMiss);
  image.Write(0, "key", "value", 9);
  image.segment_file().bytes()[image.header(0).key_offset] = std::byte{'X'};
  EXPECT_EQ(Find("key"), ReadOutcome::kMiss);
  // Behind an entry of another key with this tag, the right one is found.
  image.Put(4096, "key", "the right one", 10);
  std::string value;
  EXPECT_EQ(Grow("key", &value), ReadOutcome::kHit);
  EXPECT_EQ(value, "the right one");
}

TEST_F(ReaderTest, AHeaderOfAnotherWorldIsNotTaken) {
  const auto expect_refused = [&](std::string_view what, auto&& spoil) {
    image.Write(0, "key", "value", 9);
    spoil(&image.header(0));
    PoolImage::Seal(&image.header(0));
    EXPECT_EQ(Find("key"), ReadOutcome::kMismatch) << what;
  };
  image.Put(0, "key", "value", 9);
  expect_refused("boot", [](shm::ObjectHeader* header) { header->boot_id = 1; });
  expect_refused("namespace", [](shm::ObjectHeader* header) { header->namespace_id = 1; });
  expect_refused("generation", [](shm::ObjectHeader* h) { h->namespace_generation = 1; });
  expect_refused("version", [](shm::ObjectHeader* header) { header->version = 99; });
  expect_refused("magic", [](shm::ObjectHeader* header) { header->magic = 99; });
  expect_refused("ttl", [](shm::ObjectHeader* header) { header->ttl_s = 1; });
  image.Write(0, "key", "value", 9);
  image.header(0).payload_bytes ^= 1;  // not sealed
  EXPECT_EQ(Find("key"), ReadOutcome::kMismatch) << "header checksum";
}

TEST_F(ReaderTest, OnlyAValidChunkIsRead) {
  image.Put(0, "key", "value", 9);
  for (const ChunkState state :
       {ChunkState::kFree, ChunkState::kFilling, ChunkState::kRetired, ChunkState::kQuarantine}) {
    image.SetState(0, 9, state);
    EXPECT_EQ(Find("key"), ReadOutcome::kChanged);
  }
  image.SetState(0, 10, ChunkState::kValid);
  EXPECT_EQ(Find("key"), ReadOutcome::kChanged) << "another generation";
}

TEST_F(ReaderTest, NumbersThatPointOutsideAreNotFollowed) {
  const auto expect_refused = [&](std::string_view what, auto&& spoil) {
    image.Write(0, "key", MakeValue("ns", "key", 1, 2 * kPieceBytes), 9);
    spoil(&image.header(0));
    PoolImage::Seal(&image.header(0));
    std::string value;
    EXPECT_EQ(Grow("key", &value), ReadOutcome::kMismatch) << what;
  };
  image.Link("key", 0, 9);
  const uint64_t size = image.segment_file().size_bytes();
  expect_refused("payload length", [](shm::ObjectHeader* h) { h->payload_bytes = UINT64_MAX; });
  expect_refused("payload", [&](shm::ObjectHeader* h) { h->payload_offset = size - 1; });
  expect_refused("payload far", [](shm::ObjectHeader* h) { h->payload_offset = UINT64_MAX; });
  expect_refused("key", [](shm::ObjectHeader* h) { h->key_offset = UINT32_MAX; });
  expect_refused("sums", [](shm::ObjectHeader* h) { h->table_offset = UINT32_MAX; });
  expect_refused("no sums", [](shm::ObjectHeader* h) { h->table_offset = 0; });
  expect_refused("pieces", [](shm::ObjectHeader* h) { h->piece_bytes_log2 = 12; });
  image.EntryOf("key", 9)->location = shm::Location(PoolImage::kSegmentId, size - 64);
  EXPECT_EQ(Find("key"), ReadOutcome::kMismatch) << "header";
  image.EntryOf("key", 9)->location = shm::Location(PoolImage::kSegmentId, size * 1024);
  EXPECT_EQ(Find("key"), ReadOutcome::kMismatch) << "header far";
}

TEST_F(ReaderTest, ATableOfOddLengthIsNotRead) {
  image.Put(0, "key", "value", 9);
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{1024}, uint64_t{3} * 1024}) {
    const PlainMemory odd(image.table_file().bytes().first(bytes));
    image.seen_table = &odd;
    EXPECT_EQ(Find("key"), ReadOutcome::kMismatch) << bytes;
  }
}

// PlainMemory ends the test when it is read outside of its bounds.
TEST_F(ReaderTest, AnyBytesAreSafeToRead) {
  const uint64_t seed = 20240817;
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  const std::string value = MakeValue("ns", "key", 1, 2 * kPieceBytes);
  for (int i = 0; i < 20'000; ++i) {
    image.Write(0, "key", value, 9);
    for (shm::IndexEntry* entry = image.EntryOf("key", 9); entry != nullptr;
         entry = image.EntryOf("key", 9)) {
      entry->generation_tag = 0;
    }
    image.Link("key", 0, 9);
    auto* words = reinterpret_cast<uint64_t*>(&image.header(0));
    for (uint64_t spoiled = random() % 3 + 1; spoiled > 0; --spoiled) {
      const uint64_t word = 2 + random() % 13;  // not magic and state
      words[word] = random() >> random() % 64;
    }
    PoolImage::Seal(&image.header(0));
    if (random() % 4 == 0) {
      image.EntryOf("key", 9)->location = random() >> random() % 64;
    }
    std::string copy;
    const bool hit = Grow("key", &copy) == ReadOutcome::kHit;
    EXPECT_TRUE(!hit || copy == value);
    std::string part(random() % 300, '\0');
    (void)Range("key", random() >> random() % 64, &part);
    ObjectReader::Hint hint;
    reader().LocateBuckets(KeyHash("key"), &hint);
    ObjectReader::LoadBuckets(hint);
    reader().LocateHeader(KeyHash("key"), &hint);
    ObjectReader::LoadHeader(hint);
    ObjectReader::PrefetchKey(hint);
  }
}

TEST_F(ReaderTest, MemoryWithoutAddressIsReadAsWell) {
  image.Put(0, "key", "value", 9);
  const PlainMemory table(image.table_file().bytes(), false);
  const PlainMemory segment(image.segment_file().bytes(), false);
  image.seen_table = &table;
  image.seen_segment = &segment;
  ObjectReader::Hint hint;
  reader().LocateBuckets(KeyHash("key"), &hint);
  ObjectReader::LoadBuckets(hint);
  reader().LocateHeader(KeyHash("key"), &hint);
  ObjectReader::LoadHeader(hint);
  ObjectReader::PrefetchKey(hint);
  EXPECT_EQ(hint.first, nullptr);
  std::string value;
  EXPECT_EQ(Grow("key", &value), ReadOutcome::kHit);
  EXPECT_EQ(value, "value");
}

}  // namespace
}  // namespace ems::internal
