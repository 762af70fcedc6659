// What must hold: a record comes back as it was written, by the same layout alone; no damage goes
// unnoticed; and rows that contradict each other are refused even if their checksum is right.
#include "mp_server/restart/hand_over_record.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <utility>

#include "mp_server/memory/size_classes.h"
#include "proto/shm_layout.h"
#include "tests/mp_server/restart/record_maker.h"

namespace ems::server {
namespace {

Status Decoded(HandOver record) {
  return HandOver::Decode(EncodedRecord(std::move(record))).status();
}

TEST(HandOverRecordTest, ComesBackAsItWasWritten) {
  const HandOver before = SomeRecord();
  const auto after = HandOver::Decode(EncodedRecord(before));
  ASSERT_TRUE(after.ok()) << after.status();
  EXPECT_EQ(after->segments, before.segments);
  EXPECT_EQ(after->namespaces, before.namespaces);
  EXPECT_EQ(after->runs, before.runs);
  EXPECT_EQ(after->objects, before.objects);
  EXPECT_EQ(after->head.number, before.head.number);
  EXPECT_EQ(after->head.lineage, before.head.lineage);
}

TEST(HandOverRecordTest, WithoutObjectsItIsARecord) {
  HandOver empty;
  empty.head.layout = LayoutFingerprint();
  EXPECT_EQ(Decoded(empty), OkStatus());
}

TEST(HandOverRecordTest, MayEndWithMoreBytes) {
  std::vector<std::byte> bytes = EncodedRecord(SomeRecord());
  bytes.resize(bytes.size() + 4096);
  EXPECT_TRUE(HandOver::Decode(bytes).ok());
}

TEST(HandOverRecordTest, EachDamagedByteIsNoticed) {
  const std::vector<std::byte> good = EncodedRecord(SomeRecord());
  for (size_t at = 0; at < good.size(); ++at) {
    std::vector<std::byte> bad = good;
    bad[at] ^= std::byte{0x10};
    EXPECT_FALSE(HandOver::Decode(bad).ok()) << "byte " << at;
  }
}

TEST(HandOverRecordTest, EachShorterOneIsNoticed) {
  const std::vector<std::byte> good = EncodedRecord(SomeRecord());
  for (size_t bytes = 0; bytes < good.size(); ++bytes)
    EXPECT_EQ(HandOver::Decode(ConstBytes(good).first(bytes)).status().code(),
              StatusCode::kDataLoss)
        << bytes;
}

TEST(HandOverRecordTest, AnotherLayoutOrFormatIsNamedAsThat) {
  HandOver other = SomeRecord();
  ++other.head.layout;
  EXPECT_EQ(Decoded(other).code(), StatusCode::kFailedPrecondition);
  other = SomeRecord();
  ++other.head.format;
  EXPECT_EQ(Decoded(other).code(), StatusCode::kFailedPrecondition);
}

TEST(HandOverRecordTest, RowsThatContradictEachOtherAreRefused) {
  const std::vector<std::pair<const char*, std::function<void(HandOver*)>>> kChanges = {
      {"segment without a number", [](HandOver* r) { r->segments[0].id = 0; }},
      {"segment twice", [](HandOver* r) { r->segments[1].id = r->segments[0].id; }},
      {"segment of no whole page", [](HandOver* r) { r->segments[0].bytes += 1; }},
      {"kind of pages", [](HandOver* r) { r->segments[0].page_kind = 3; }},
      {"segment of nobody",
       [](HandOver* r) {
         r->segments.push_back({1, 2, 2 * kMiB, 77, 0});
       }},
      {"segment of two", [](HandOver* r) { r->runs[2].segment = 0; }},
      {"namespace 0", [](HandOver* r) { r->namespaces[0].id = 0; }},
      {"namespaces in disorder", [](HandOver* r) { r->namespaces[1].id = 1; }},
      {"more runs than there are", [](HandOver* r) { ++r->namespaces[1].runs; }},
      {"fewer", [](HandOver* r) { --r->namespaces[1].objects; }},
      {"runs that overlap", [](HandOver* r) { r->runs[1].first_page = r->runs[0].pages - 1; }},
      {"run beyond its segment", [](HandOver* r) { r->runs[1].pages = 1 << 20; }},
      {"run of overflowing length", [](HandOver* r) { r->runs[1].pages = UINT32_MAX; }},
      {"run of an unknown segment", [](HandOver* r) { r->runs[0].segment = 9; }},
      {"class that is none", [](HandOver* r) { r->runs[0].size_class = 200; }},
      {"more chunks than fit", [](HandOver* r) { r->runs[0].chunks = 1 << 30; }},
      {"chunks of no slab", [](HandOver* r) { r->runs[1].chunks = 1; }},
      {"object of another's run", [](HandOver* r) { r->objects[0].run = 2; }},
      {"object outside of its run", [](HandOver* r) { r->objects[0].offset_units += 1 << 20; }},
      {"object before its run", [](HandOver* r) { r->objects[1].offset_units = 0; }},
      {"object of another class", [](HandOver* r) { r->objects[0].value_bytes = 300'000; }},
      {"object without a key", [](HandOver* r) { r->objects[0].key_bytes = 0; }},
      {"key that is too long", [](HandOver* r) { r->objects[0].key_bytes = 513; }},
      {"slot that is none", [](HandOver* r) { r->objects[0].slot = 16384; }},
      {"generation to come", [](HandOver* r) { r->objects[0].generation = 1'000'000; }},
  };
  for (const auto& [what, change] : kChanges) {
    HandOver record = SomeRecord();
    change(&record);
    EXPECT_EQ(Decoded(std::move(record)).code(), StatusCode::kDataLoss) << what;
  }
}

}  // namespace
}  // namespace ems::server
