// What must hold: after a restart exactly those rows count whose region is still used for what they
// say and that can lie in it; the others are gone for good, and no number is used twice.
#include "mp_server/ssd/recovery.h"

#include <gtest/gtest.h>
#include <rocksdb/db.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/mp_server/ssd/rocksdb_faults.h"
#include "tests/mp_server/ssd/ssd_fixture.h"

namespace ems::ssd {
namespace {

namespace fs = std::filesystem;
using testing::kNs;
using testing::kOtherNs;
using testing::NameOf;

constexpr uint64_t kRegionBytes = 512 * kKiB;

class RecoveryTest : public ::testing::Test {
 protected:
  RecoveryTest() {
    OpenAll();
    Region* one = testing::BeginRegion(log_.get(), kNs);
    Region* two = testing::BeginRegion(log_.get(), kOtherNs);
    EMS_CHECK(one != nullptr && two != nullptr);
    first_ = one->id;
    second_ = two->id;
  }
  void OpenAll() {
    rows_.reset();
    log_.reset();
    RegionIndex::Options options;
    options.folder = folder_ / "index";
    options.env = disk_.env();
    Result<std::unique_ptr<RegionIndex>> rows = RegionIndex::Open(options);
    EMS_CHECK(rows.ok(), "{}", ToString(rows.status()));
    rows_ = *std::move(rows);
    Result<std::unique_ptr<RegionLog>> log =
        RegionLog::Open(testing::LogOptions(folder_ / "regions", &files_, 4, kRegionBytes));
    EMS_CHECK(log.ok(), "{}", ToString(log.status()));
    log_ = *std::move(log);
  }
  // A row that counts, of a packed value at the start of region `id`.
  Row GoodRow(uint32_t id, uint64_t sequence) {
    Row row;
    row.sequence = sequence;
    row.region = id;
    row.region_sequence = log_->Find(id)->sequence;
    row.value_bytes = 1000;
    row.value_checksum = 7;
    row.key_bytes = 10;
    row.offset_units = static_cast<uint32_t>(kBlockBytes / kPackUnit);
    row.slot = 5;
    return row;
  }
  void Put(const ObjectName& name, const Row& row) {
    RowBatch batch;
    batch.Put(name, row);
    ASSERT_TRUE(rows_->Write(batch, false).ok());
  }
  // After a restart.
  Result<Recovered> RecoverAnew() {
    OpenAll();
    index_.Clear();
    return Recover(rows_.get(), log_.get(), &index_);
  }
  // Of `recovered`, after a status that must be OK.
  void ExpectCounts(const Result<Recovered>& recovered, uint64_t objects, uint64_t stale) {
    ASSERT_TRUE(recovered.ok()) << recovered.status();
    EXPECT_EQ(recovered->objects, objects);
    EXPECT_EQ(recovered->stale_rows, stale);
    EXPECT_EQ(recovered->unreadable_rows, 0U);
    EXPECT_EQ(index_.totals().objects, objects);
    EXPECT_EQ(RowCount(), objects) << "in the durable index";
  }
  uint64_t RowCount() const {
    uint64_t count = 0;
    uint64_t unreadable = 0;
    const Status walked =
        rows_->ForEach([&](const ObjectName&, const Row&) { ++count; }, &unreadable);
    EXPECT_TRUE(walked.ok()) << walked;
    return count;
  }

  testing::TempFolder folder_;
  testing::FaultyDisk disk_;
  testing::FaultyFiles files_;
  std::unique_ptr<RegionIndex> rows_;
  std::unique_ptr<RegionLog> log_;
  SsdIndex index_;
  uint32_t first_ = 0;   // a region of kNs
  uint32_t second_ = 0;  // a region of kOtherNs
};

TEST_F(RecoveryTest, NothingComesOfNothing) {
  const Result<Recovered> recovered = RecoverAnew();
  ExpectCounts(recovered, 0, 0);
  EXPECT_EQ(recovered->next_sequence, 1U);
}

TEST_F(RecoveryTest, RowsOfAUseThatIsStillThereCount) {
  const Row a = GoodRow(first_, 20);
  Row b = GoodRow(second_, 21);
  b.offset_units += 1000;
  Put(NameOf("a", kNs), a);
  Put(NameOf("b", kOtherNs), b);
  ExpectCounts(RecoverAnew(), 2, 0);
  const SsdIndex::Found found = index_.Find(NameOf("b", kOtherNs), false);
  ASSERT_TRUE(found.stored && !found.pending);
  EXPECT_EQ(found.row.sequence, 21U);
  EXPECT_EQ(found.row.region, second_);
  EXPECT_EQ(found.row.region_sequence, b.region_sequence);
  EXPECT_EQ(found.row.offset_units, b.offset_units);
  EXPECT_EQ(found.row.value_bytes, 1000U);
  EXPECT_EQ(found.row.value_checksum, 7U);
  EXPECT_EQ(found.row.key_bytes, 10U);
  EXPECT_EQ(found.row.slot, 5U);
  EXPECT_EQ(log_->Find(first_)->members, std::vector<Hash128>{KeyHash("a")});
  EXPECT_EQ(log_->Find(second_)->members, std::vector<Hash128>{KeyHash("b")});
  EXPECT_EQ(log_->Find(first_)->state, RegionState::kSealed);
  EXPECT_EQ(index_.totals().objects, 2U);
  ExpectCounts(RecoverAnew(), 2, 0);  // and again
}

TEST_F(RecoveryTest, RowsOfSomethingElseAreStaleAndGoForGood) {
  const Row good = GoodRow(first_, 20);
  Row earlier = good;
  --earlier.region_sequence;
  Row later = good;
  later.region_sequence += 100;
  Row nowhere = good;
  nowhere.region = 99;
  Row others = GoodRow(second_, 21);
  Put(NameOf("good"), good);
  Put(NameOf("earlier"), earlier);
  Put(NameOf("later"), later);
  Put(NameOf("nowhere"), nowhere);
  Put(NameOf("in a region of another namespace"), others);
  Put(NameOf("of a purged generation", {kNs.id, kNs.generation - 1}), good);
  ExpectCounts(RecoverAnew(), 1, 5);
  EXPECT_TRUE(index_.Find(NameOf("good"), false).stored);
  EXPECT_TRUE(log_->Find(second_)->members.empty());
  ExpectCounts(RecoverAnew(), 1, 0);
}

TEST_F(RecoveryTest, RowsThatCannotLieInARegionAreStale) {
  const std::vector<std::pair<std::string, std::function<void(Row*)>>> cases = {
      {"over the region's header", [](Row* r) { r->offset_units = 0; }},
      {"inside the header's block",
       [](Row* r) { r->offset_units = static_cast<uint32_t>(kBlockBytes / kPackUnit) - 1; }},
      {"at the region's end",
       [](Row* r) { r->offset_units = static_cast<uint32_t>(kRegionBytes / kPackUnit); }},
      {"across the region's end",
       [](Row* r) { r->offset_units = static_cast<uint32_t>(kRegionBytes / kPackUnit) - 1; }},
      {"far beyond", [](Row* r) { r->offset_units = UINT32_MAX; }},
      {"a value as large as a region", [](Row* r) { r->value_bytes = kRegionBytes; }},
      {"a value too large by a block",
       [](Row* r) { r->value_bytes = kRegionBytes - 2 * kBlockBytes + 1; }},
      {"a value larger than memory", [](Row* r) { r->value_bytes = UINT64_MAX; }},
      {"a value that wraps around", [](Row* r) { r->value_bytes = UINT64_MAX - 4095; }},
      {"a key larger than a region", [](Row* r) { r->key_bytes = UINT32_MAX; }},
      {"a key larger than keys are", [](Row* r) { r->key_bytes = 100 * kKiB; }},
  };
  Put(NameOf("good"), GoodRow(first_, 1));
  for (const auto& [what, change] : cases) {
    Row row = GoodRow(first_, 2);
    change(&row);
    Put(NameOf(what), row);
  }
  ExpectCounts(RecoverAnew(), 1, cases.size());
  for (const auto& [what, change] : cases) EXPECT_FALSE(index_.Find(NameOf(what), false).stored);
}

TEST_F(RecoveryTest, TheLastRecordThatFitsCounts) {
  Row packed = GoodRow(first_, 1);
  const RecordShape shape(packed.value_bytes, packed.key_bytes);
  packed.offset_units = static_cast<uint32_t>((kRegionBytes - shape.record_bytes()) / kPackUnit);
  Put(NameOf("packed"), packed);
  Row aligned = GoodRow(second_, 2);
  aligned.value_bytes = kRegionBytes - 2 * kBlockBytes;  // all but both headers
  Put(NameOf("aligned", kOtherNs), aligned);
  ExpectCounts(RecoverAnew(), 2, 0);
}

// Its payload would not start on a block, which moving it relies on.
TEST_F(RecoveryTest, AnAlignedRecordThatIsNotAlignedIsStale) {
  Row row = GoodRow(first_, 1);
  row.value_bytes = kAlignedFrom;
  ++row.offset_units;
  Put(NameOf("a"), row);
  ExpectCounts(RecoverAnew(), 0, 1);
}

TEST_F(RecoveryTest, RegionsThatNoRowNeedsAreFree) {
  Put(NameOf("a"), GoodRow(first_, 1));
  Row stale = GoodRow(second_, 1);
  ++stale.region_sequence;
  Put(NameOf("b", kOtherNs), stale);
  ExpectCounts(RecoverAnew(), 1, 1);
  EXPECT_EQ(log_->Find(first_)->state, RegionState::kSealed);
  EXPECT_EQ(log_->Find(second_)->state, RegionState::kFree);
  EXPECT_EQ(::ems::testing::FreeRegions(*log_), 1U);
  const Result<Region*> taken = log_->TakeFree();
  ASSERT_TRUE(taken.ok());
  EXPECT_EQ((*taken)->id, second_);
}

TEST_F(RecoveryTest, RowsOfARegionThatIsGivenUpAreStale) {
  Put(NameOf("a"), GoodRow(first_, 1));
  Put(NameOf("b", kOtherNs), GoodRow(second_, 2));
  rows_.reset();
  log_.reset();
  for (const auto& file : fs::directory_iterator(folder_ / "regions"))
    fs::resize_file(file.path(), kRegionBytes / 2);
  ExpectCounts(RecoverAnew(), 0, 2);
  EXPECT_TRUE(log_->regions().empty());
}

TEST_F(RecoveryTest, RowsOfARegionWithADamagedHeaderAreStale) {
  Put(NameOf("a"), GoodRow(first_, 1));
  Put(NameOf("b", kOtherNs), GoodRow(second_, 2));
  files_.Fail(testing::FaultyFiles::kRead, StatusCode::kUnavailable, 1);
  ExpectCounts(RecoverAnew(), 1, 1);
  EXPECT_EQ(::ems::testing::FreeRegions(*log_), 1U);
}

TEST_F(RecoveryTest, NoSequenceIsUsedTwiceNotEvenAStaleRows) {
  Row row = GoodRow(first_, 500);
  Put(NameOf("a"), row);
  row.sequence = 900;
  row.region_sequence += 70;
  Put(NameOf("stale"), row);
  const Result<Recovered> recovered = RecoverAnew();
  ExpectCounts(recovered, 1, 1);
  EXPECT_EQ(recovered->next_sequence, 901U);
  EXPECT_GT(log_->next_sequence(), row.region_sequence);
  const Region* begun = testing::BeginRegion(log_.get());
  ASSERT_NE(begun, nullptr);
  EXPECT_GT(begun->sequence, row.region_sequence);
}

// Behind the largest number there is 0: what is put later would be older than what is there.
TEST_F(RecoveryTest, ARowWithANumberThatNoStoreReachesIsStaleAndRaisesNone) {
  const Row good = GoodRow(first_, 20);
  Row put = good;
  put.sequence = UINT64_MAX;
  Row region = GoodRow(first_, 5);
  region.region_sequence = UINT64_MAX;
  Put(NameOf("a"), good);
  Put(NameOf("b"), put);
  Put(NameOf("c"), region);
  const Result<Recovered> recovered = RecoverAnew();
  ExpectCounts(recovered, 1, 2);
  EXPECT_EQ(recovered->next_sequence, 21U);
  EXPECT_EQ(log_->next_sequence(), log_->Find(second_)->sequence + 1);
}

TEST_F(RecoveryTest, WhatTheIndexHasNoRoomForGoesForGoodTheOldestFirst) {
  for (uint64_t i = 0; i < 10; ++i) Put(NameOf(std::to_string(i)), GoodRow(first_, 20 + i));
  Put(NameOf("b", kOtherNs), GoodRow(second_, 7));
  OpenAll();
  const Result<Recovered> fits = Recover(rows_.get(), log_.get(), &index_, 0, 11);
  ExpectCounts(fits, 11, 0);
  EXPECT_EQ(fits->dropped_objects, 0U);
  OpenAll();
  index_.Clear();
  const Result<Recovered> less = Recover(rows_.get(), log_.get(), &index_, 0, 10);
  ExpectCounts(less, 1, 0);
  EXPECT_EQ(less->dropped_objects, 10U);
  EXPECT_EQ(less->next_sequence, 30U) << "no number is used twice";
  EXPECT_TRUE(index_.Find(NameOf("b", kOtherNs), false).stored);
  EXPECT_EQ(log_->Find(first_)->state, RegionState::kFree);
  ExpectCounts(RecoverAnew(), 1, 0);
}

// What takes the place of such a row may be in DRAM alone when the power fails.
TEST_F(RecoveryTest, WhatTheIndexHasNoRoomForIsGoneOnlyWhenThatIsSynced) {
  Put(NameOf("a"), GoodRow(first_, 20));
  OpenAll();
  disk_.Set(testing::DiskFault::kNoSync);
  const Result<Recovered> refused = Recover(rows_.get(), log_.get(), &index_, 0, 0);
  EXPECT_EQ(refused.status().code(), StatusCode::kUnavailable);
}

TEST_F(RecoveryTest, MoreStaleRowsThanOneBatchHoldsAllGo) {
  constexpr uint64_t kRows = 20'000;
  RowBatch batch;
  Row stale = GoodRow(first_, 1);
  ++stale.region_sequence;
  for (uint64_t i = 0; i < kRows; ++i) batch.Put(NameOf("stale " + std::to_string(i)), stale);
  ASSERT_TRUE(rows_->Write(batch, false).ok());
  Put(NameOf("good"), GoodRow(first_, 1));
  ExpectCounts(RecoverAnew(), 1, kRows);
}

TEST_F(RecoveryTest, SeveralThreadsFindWhatOneFinds) {
  RowBatch batch;
  for (uint64_t i = 0; i < 3000; ++i) {
    const bool other = i % 3 == 0;
    Row row = GoodRow(other ? second_ : first_, i + 1);
    if (i % 10 == 0) ++row.region_sequence;
    batch.Put(NameOf("key " + std::to_string(i), other ? kOtherNs : kNs), row);
  }
  ASSERT_TRUE(rows_->Write(batch, false).ok());
  const auto members = [this](uint32_t id) {
    std::vector<Hash128> sorted = log_->Find(id)->members;
    std::sort(sorted.begin(), sorted.end());
    return sorted;
  };
  OpenAll();
  const Result<Recovered> found = Recover(rows_.get(), log_.get(), &index_, 5);
  ExpectCounts(found, 2700, 300);
  EXPECT_EQ(found->next_sequence, 3001U);
  EXPECT_EQ(log_->next_sequence(), log_->Find(second_)->sequence + 2) << "a stale row has one more";
  const auto first = members(first_), second = members(second_);
  OpenAll();
  index_.Clear();
  const Result<Recovered> again = Recover(rows_.get(), log_.get(), &index_, 1);
  ExpectCounts(again, 2700, 0);
  EXPECT_EQ(members(first_), first);
  EXPECT_EQ(members(second_), second);
}

TEST_F(RecoveryTest, RowsThatCannotBeReadAreCounted) {
  Put(NameOf("a"), GoodRow(first_, 1));
  rows_.reset();
  {
    rocksdb::DB* raw = nullptr;
    ASSERT_TRUE(rocksdb::DB::Open(rocksdb::Options(), folder_ / "index", &raw).ok());
    const std::unique_ptr<rocksdb::DB> db(raw);
    ASSERT_TRUE(db->Put(rocksdb::WriteOptions(), "o" + std::string(24, 'k'), "short").ok());
  }
  const Result<Recovered> recovered = RecoverAnew();
  ASSERT_TRUE(recovered.ok()) << recovered.status();
  EXPECT_EQ(recovered->objects, 1U);
  EXPECT_EQ(recovered->stale_rows, 0U);
  EXPECT_EQ(recovered->unreadable_rows, 1U);
}

TEST_F(RecoveryTest, ADiskThatDoesNotTakeTheDeletesIsUnavailable) {
  Row stale = GoodRow(first_, 1);
  ++stale.region_sequence;
  Put(NameOf("stale"), stale);
  OpenAll();
  disk_.Set(testing::DiskFault::kFull);
  EXPECT_EQ(Recover(rows_.get(), log_.get(), &index_).status().code(), StatusCode::kUnavailable);
  disk_.Set(testing::DiskFault::kNone);
  ExpectCounts(RecoverAnew(), 0, 1);
}

TEST_F(RecoveryTest, AnIndexThatCannotBeWalkedToItsEndIsDataLoss) {
  RowBatch batch;
  for (uint64_t i = 0; i < 2000; ++i)
    batch.Put(NameOf("key " + std::to_string(i)), GoodRow(first_, i + 1));
  ASSERT_TRUE(rows_->Write(batch, false).ok());
  OpenAll();  // its rows are in a table now
  rows_.reset();
  std::string table;
  for (const auto& file : fs::directory_iterator(folder_ / "index")) {
    if (file.path().extension() == ".sst") table = std::max(table, file.path().string());
  }
  ASSERT_NE(table, "");
  {
    std::fstream file(table, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(fs::file_size(table) / 2));
    file << "damage";
  }
  const Result<Recovered> recovered = RecoverAnew();
  EXPECT_EQ(recovered.status().code(), StatusCode::kDataLoss) << recovered.status();
}

}  // namespace
}  // namespace ems::ssd
