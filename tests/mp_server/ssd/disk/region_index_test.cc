// What must hold: what was written is there again, whole batches at a time, however the process
// ended; damage is told from a disk that refuses, because the one costs the tier its contents.
#include "mp_server/ssd/disk/region_index.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <rocksdb/db.h>
#include <sys/fsuid.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/mp_server/ssd/disk/region_index_fixture.h"
#include "tests/support/eventually.h"

namespace ems::ssd {
namespace {

namespace fs = std::filesystem;
using testing::DiskFault;
using testing::kNs;
using testing::kOtherNs;
using testing::MakeRow;
using testing::NameOf;
using testing::RegionIndexTest;
using testing::Rows;
using testing::Same;

TEST_F(RegionIndexTest, ANewOneHasNoRowsAndNoMeta) {
  ASSERT_TRUE(Open().ok());
  EXPECT_TRUE(RowsNow().empty());
  EXPECT_EQ(*index_->Meta("view"), "");
  EXPECT_FALSE(index_->broken());
  EXPECT_GT(index_->disk_bytes(), 0U);
}

TEST_F(RegionIndexTest, NoneIsMadeUnlessAskedFor) {
  options_.create = false;
  EXPECT_EQ(Open().code(), StatusCode::kNotFound);
  fs::create_directories(options_.folder);
  EXPECT_EQ(Open().code(), StatusCode::kNotFound) << "an empty folder is none, either";
  options_.create = true;
  ASSERT_TRUE(Open().ok());
  options_.create = false;
  EXPECT_TRUE(Open().ok());
}

TEST_F(RegionIndexTest, RowsOfAllNamespacesSurviveAReopen) {
  ASSERT_TRUE(Open().ok());
  Rows written;
  RowBatch batch;
  for (const uint32_t id : {1U, 0x6fU, 0xff00U, UINT32_MAX}) {
    for (const uint32_t generation : {0U, 1U, UINT32_MAX}) {
      const ObjectName name = NameOf("key", {NamespaceId(id), generation});
      const Row row = MakeRow(written.size() + 1);
      batch.Put(name, row);
      written.emplace(name, row);
    }
  }
  EXPECT_EQ(batch.count(), written.size());
  ASSERT_TRUE(index_->Write(batch, true).ok());
  for (int i = 0; i < 2; ++i) {
    const Rows rows = RowsNow();
    ASSERT_EQ(rows.size(), written.size());
    for (const auto& [name, row] : written) EXPECT_TRUE(Same(rows.at(name), row));
    ASSERT_TRUE(i == 0 ? Open().ok() : index_->Reopen(true).ok());
  }
}

TEST_F(RegionIndexTest, ALaterPutAndADeleteCount) {
  ASSERT_TRUE(Open().ok());
  ASSERT_TRUE(Put("a", 1).ok() && Put("b", 2).ok() && Put("a", 3).ok());
  RowBatch batch;
  batch.Put(NameOf("c"), MakeRow(4));
  batch.Delete(NameOf("c"));  // in the order of the batch
  batch.Delete(NameOf("b"));
  batch.Put(NameOf("b"), MakeRow(5));
  batch.Delete(NameOf("never there"));
  EXPECT_EQ(batch.count(), 5U);
  ASSERT_TRUE(index_->Write(batch, false).ok());
  ExpectRows(RowsNow(), {{"a", 3}, {"b", 5}});
  batch.Clear();
  EXPECT_EQ(batch.count(), 0U);
  ASSERT_TRUE(index_->Write(batch, true).ok()) << "nothing to write is no error";
  ASSERT_TRUE(Open().ok());
  ExpectRows(RowsNow(), {{"a", 3}, {"b", 5}});
}

TEST_F(RegionIndexTest, MetaRowsSurviveAndAreNoObjects) {
  ASSERT_TRUE(Open().ok());
  RowBatch batch;
  batch.PutMeta("view", std::string("\0 12\xff", 5));
  batch.PutMeta("empty", "");
  batch.PutMeta("o", "like an object's prefix");
  batch.Put(NameOf("a"), MakeRow(1));
  ASSERT_TRUE(index_->Write(batch, false).ok());
  ASSERT_TRUE(Open().ok());
  EXPECT_EQ(*index_->Meta("view"), std::string("\0 12\xff", 5));
  EXPECT_EQ(*index_->Meta("empty"), "");
  EXPECT_EQ(*index_->Meta("o"), "like an object's prefix");
  EXPECT_EQ(*index_->Meta("vie"), "");
  ExpectRows(RowsNow(), {{"a", 1}});
}

TEST_F(RegionIndexTest, WhatWasWrittenSurvivesTheDeathOfTheProcessWithoutASync) {
  ASSERT_TRUE(Open().ok());
  for (uint64_t i = 0; i < 50; ++i) ASSERT_TRUE(Put("key " + std::to_string(i), i).ok());
  RowBatch batch;
  batch.Delete(NameOf("key 7"));
  batch.PutMeta("view", "3");
  ASSERT_TRUE(index_->Write(batch, false).ok());
  const auto after = OpenAt(Copy("killed"));
  ASSERT_TRUE(after.ok()) << after.status();
  const Rows rows = RowsOf(**after);
  EXPECT_EQ(rows.size(), 49U);
  EXPECT_FALSE(rows.contains(NameOf("key 7"))) << "nothing brings it back";
  EXPECT_EQ(*(*after)->Meta("view"), "3");
}

TEST_F(RegionIndexTest, ABatchThatWasTornIsNotThereAtAll) {
  ASSERT_TRUE(Open().ok());
  ASSERT_TRUE(Put("before", 1).ok());
  const std::string log = fs::path(Newest(options_.folder, "0", ".log")).filename().string();
  const uint64_t begin = fs::file_size(options_.folder + "/" + log);
  RowBatch batch;
  batch.Put(NameOf("x"), MakeRow(2));
  batch.Delete(NameOf("before"));
  batch.Put(NameOf("y"), MakeRow(3));
  ASSERT_TRUE(index_->Write(batch, false).ok());
  const uint64_t end = fs::file_size(options_.folder + "/" + log);
  ASSERT_GT(end, begin);
  std::vector<uint64_t> cuts = {begin, begin + 1, end - 1, end};
  for (uint64_t cut = begin + 6; cut < end; cut += 48) cuts.push_back(cut);
  for (const uint64_t cut : cuts) {
    const std::string torn = Copy("torn");
    fs::resize_file(torn + "/" + log, cut);
    const auto after = OpenAt(torn);
    ASSERT_TRUE(after.ok()) << cut << ": " << after.status();
    if (cut == end) {
      ExpectRows(RowsOf(**after), {{"x", 2}, {"y", 3}});
    } else {
      ExpectRows(RowsOf(**after), {{"before", 1}});
    }
  }
}

TEST_F(RegionIndexTest, RowsOfAnotherSizeAreCountedAndLeftOut) {
  ASSERT_TRUE(Open().ok());
  ASSERT_TRUE(Put("a", 1).ok());
  index_.reset();
  {
    rocksdb::DB* raw = nullptr;
    ASSERT_TRUE(rocksdb::DB::Open(rocksdb::Options(), options_.folder, &raw).ok());
    const std::unique_ptr<rocksdb::DB> db(raw);
    const std::string row(sizeof(Row), 'r');
    const std::string key = "o" + std::string(24, 'k');
    const rocksdb::WriteOptions write;
    ASSERT_TRUE(db->Put(write, key, row.substr(1)).ok());
    ASSERT_TRUE(db->Put(write, key + "k", row).ok());
    ASSERT_TRUE(db->Put(write, key.substr(1), row).ok()) << "no object: another prefix";
    ASSERT_TRUE(db->Put(write, "o", "").ok());
    ASSERT_TRUE(db->Put(write, "p", row).ok());
  }
  ASSERT_TRUE(Open().ok());
  ExpectRows(RowsOf(*index_, 3), {{"a", 1}});
}

TEST_F(RegionIndexTest, AnotherFormatIsRefusedAndLeftAsItIs) {
  ASSERT_TRUE(Open().ok());
  ASSERT_TRUE(Put("a", 1).ok());
  RowBatch batch;
  batch.PutMeta("format", "3");
  ASSERT_TRUE(index_->Write(batch, true).ok());
  for (int i = 0; i < 2; ++i) {
    const Status status = Open();
    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition) << status;
    EXPECT_NE(Message(status).find("\"3\""), std::string_view::npos) << status;
    EXPECT_NE(Message(status).find(options_.folder), std::string_view::npos) << status;
  }
}

// Of a version whose keys lay in 4096 slots: rows name slots that are other ones now.
TEST_F(RegionIndexTest, RowsOfFewerSlotsAreRefused) {
  ASSERT_TRUE(Open().ok());
  RowBatch batch;
  batch.PutMeta("format", "1");
  ASSERT_TRUE(index_->Write(batch, true).ok());
  const Status status = Open();
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition) << status;
  EXPECT_NE(Message(status).find("4096 slots"), std::string_view::npos) << status;
}

TEST_F(RegionIndexTest, TwoCannotWorkOnOneFolder) {
  ASSERT_TRUE(Open().ok());
  EXPECT_EQ(OpenAt(options_.folder).status().code(), StatusCode::kUnavailable);
  EXPECT_TRUE(Put("a", 1).ok()) << "the first one is undisturbed";
}

TEST_F(RegionIndexTest, APathThatCannotBeIsUnavailable) {
  std::ofstream(folder_ / "file") << "x";
  options_.folder = folder_ / "file/index";
  EXPECT_EQ(Open().code(), StatusCode::kUnavailable);
  options_.folder = folder_ / "file";
  EXPECT_EQ(Open().code(), StatusCode::kUnavailable);
}

TEST_F(RegionIndexTest, AFolderWhoseDiskIsNotMountedIsUnavailable) {
  options_.folder = folder_ / "mount/ems/index";
  EXPECT_EQ(Open().code(), StatusCode::kUnavailable);
}

// For as long as it lives, this thread may write no file of others; root's included.
class WithoutRights final {
 public:
  WithoutRights() {
    if (::geteuid() == 0) ::setfsuid(65534);
  }
  ~WithoutRights() { ::setfsuid(::geteuid()); }
  WithoutRights(const WithoutRights&) = delete;
  WithoutRights& operator=(const WithoutRights&) = delete;
};

TEST_F(RegionIndexTest, AFolderThatMayNotBeWrittenIsUnavailableAndNotDamaged) {
  ASSERT_TRUE(Open().ok());
  ASSERT_TRUE(Put("a", 1).ok());
  index_.reset();
  fs::permissions(folder_.path(), fs::perms(0755));
  for (const auto& file : fs::directory_iterator(options_.folder))
    fs::permissions(file.path(), fs::perms(0444));
  fs::create_directory(folder_ / "none");
  for (const char* name : {"index", "none"}) fs::permissions(folder_ / name, fs::perms(0555));
  {
    const WithoutRights without;
    EXPECT_EQ(Open().code(), StatusCode::kUnavailable);
    EXPECT_EQ(OpenAt(folder_ / "none").status().code(), StatusCode::kUnavailable);
    EXPECT_EQ(OpenAt(folder_ / "none/index").status().code(), StatusCode::kUnavailable);
  }
  for (const char* name : {"index", "none"}) fs::permissions(folder_ / name, fs::perms(0755));
  for (const auto& file : fs::directory_iterator(options_.folder))
    fs::permissions(file.path(), fs::perms(0644));
  ASSERT_TRUE(Open().ok());
  ExpectRows(RowsNow(), {{"a", 1}});
}

class RegionIndexFaultTest : public RegionIndexTest,
                             public ::testing::WithParamInterface<DiskFault> {
 protected:
  RegionIndexFaultTest() { options_.env = disk_.env(); }
};

TEST_P(RegionIndexFaultTest, ADiskThatRefusesTheOpenIsUnavailableAndNothingIsLost) {
  disk_.Set(GetParam());
  EXPECT_EQ(Open().code(), StatusCode::kUnavailable) << "a new one";
  disk_.Set(DiskFault::kNone);
  ASSERT_TRUE(Open().ok());
  ASSERT_TRUE(Put("a", 1).ok());
  disk_.Set(GetParam());
  for (int i = 0; i < 2; ++i) {
    const Status status = Open();
    EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status;
  }
  disk_.Set(DiskFault::kNone);
  ASSERT_TRUE(Open().ok());
  ExpectRows(RowsNow(), {{"a", 1}});
}

TEST_P(RegionIndexFaultTest, AfterAnErrorNothingIsWrittenUntilItIsOpenedAnew) {
  ASSERT_TRUE(Open().ok());
  ASSERT_TRUE(Put("a", 1).ok());
  disk_.Set(GetParam());
  RowBatch batch;
  batch.Put(NameOf("b"), MakeRow(2));
  batch.Put(NameOf("c"), MakeRow(3));
  const Status failed = index_->Write(batch, true);
  EXPECT_EQ(failed.code(), StatusCode::kUnavailable) << failed;
  EXPECT_TRUE(index_->broken());
  disk_.Set(DiskFault::kNone);
  EXPECT_EQ(Put("d", 4).code(), StatusCode::kUnavailable);
  EXPECT_EQ(index_->SyncLog().code(), StatusCode::kUnavailable);
  EXPECT_TRUE(index_->broken());

  ASSERT_TRUE(index_->Reopen(true).ok());
  EXPECT_FALSE(index_->broken());
  const Rows rows = RowsNow();
  EXPECT_TRUE(rows.contains(NameOf("a")));
  EXPECT_EQ(rows.contains(NameOf("b")), rows.contains(NameOf("c"))) << "all of it or nothing";
  EXPECT_FALSE(rows.contains(NameOf("d")));
  ASSERT_TRUE(Put("d", 5, true).ok() && index_->SyncLog().ok());
  ASSERT_TRUE(Open().ok());
  EXPECT_TRUE(RowsNow().contains(NameOf("d")));
}

TEST_P(RegionIndexFaultTest, AReopenThatFailsLeavesItBrokenAndMayBeTriedAgain) {
  ASSERT_TRUE(Open().ok());
  ASSERT_TRUE(Put("a", 1).ok());
  disk_.Set(GetParam());
  for (int i = 0; i < 2; ++i) {
    const Status reopened = index_->Reopen(true);
    EXPECT_EQ(reopened.code(), StatusCode::kUnavailable) << reopened;
    EXPECT_TRUE(index_->broken());
    EXPECT_EQ(Put("b", 2).code(), StatusCode::kUnavailable);
    EXPECT_EQ(index_->SyncLog().code(), StatusCode::kUnavailable);
    EXPECT_GT(index_->disk_bytes(), 0U);
  }
  disk_.Set(DiskFault::kNone);
  ASSERT_TRUE(index_->Reopen(true).ok());
  EXPECT_FALSE(index_->broken());
  ExpectRows(RowsNow(), {{"a", 1}});
  EXPECT_TRUE(Put("b", 2).ok());
}

INSTANTIATE_TEST_SUITE_P(Faults, RegionIndexFaultTest,
                         ::testing::Values(DiskFault::kFull, DiskFault::kBroken,
                                           DiskFault::kReadOnly, DiskFault::kNoSync));

TEST_F(RegionIndexTest, ALogThatCannotBeSyncedBreaksIt) {
  options_.env = disk_.env();
  ASSERT_TRUE(Open().ok());
  ASSERT_TRUE(Put("a", 1).ok());
  EXPECT_TRUE(index_->SyncLog().ok());
  disk_.Set(DiskFault::kNoSync);
  EXPECT_TRUE(Put("b", 2).ok()) << "it survives the process";
  EXPECT_EQ(index_->SyncLog().code(), StatusCode::kUnavailable);
  EXPECT_TRUE(index_->broken());
  disk_.Set(DiskFault::kNone);
  EXPECT_EQ(Put("c", 3).code(), StatusCode::kUnavailable);
  ASSERT_TRUE(index_->Reopen(true).ok());
  EXPECT_TRUE(RowsNow().contains(NameOf("a")));
}

TEST_F(RegionIndexTest, ADiskThatDoesNotReadIsUnavailableAndNotDamaged) {
  options_.env = disk_.env();
  ASSERT_TRUE(Open().ok());
  RowBatch batch;
  for (uint64_t i = 0; i < 2000; ++i) batch.Put(NameOf(std::to_string(i)), MakeRow(i));
  ASSERT_TRUE(index_->Write(batch, true).ok());
  index_.reset();
  disk_.Set(DiskFault::kNoRead);
  const Status opened = Open();
  EXPECT_EQ(opened.code(), StatusCode::kUnavailable) << opened;
  disk_.Set(DiskFault::kNone);
  ASSERT_TRUE(Open().ok());  // its rows are in a table from here on
  ASSERT_TRUE(Open().ok());
  EXPECT_EQ(RowsNow().size(), 2000U);
}

TEST_F(RegionIndexTest, AReopenMakesANewOneOnlyWhenAskedFor) {
  ASSERT_TRUE(Open().ok());
  ASSERT_TRUE(Put("a", 1).ok());
  ASSERT_TRUE(index_->Reopen(false).ok());
  ExpectRows(RowsNow(), {{"a", 1}});
  fs::remove_all(options_.folder);
  EXPECT_EQ(index_->Reopen(false).code(), StatusCode::kNotFound);
  EXPECT_TRUE(index_->broken());
  EXPECT_EQ(Put("b", 2).code(), StatusCode::kUnavailable);
  ASSERT_TRUE(index_->Reopen(true).ok());
  EXPECT_FALSE(index_->broken());
  EXPECT_TRUE(RowsNow().empty());
  ASSERT_TRUE(Put("b", 2).ok());
  ASSERT_TRUE(Open().ok());
  ExpectRows(RowsNow(), {{"b", 2}});
}

// Who is told of damage gives all rows up; a disk that did not answer once, or a process with too
// many open files, is no reason for that.
TEST_F(RegionIndexTest, ADiskThatDoesNotReadDuringAWalkIsUnavailableAndNotDamaged) {
  options_.env = disk_.env();
  ASSERT_TRUE(Open().ok());
  RowBatch batch;
  for (uint64_t i = 0; i < 2000; ++i) batch.Put(NameOf(std::to_string(i)), MakeRow(i));
  ASSERT_TRUE(index_->Write(batch, true).ok());
  ASSERT_TRUE(Open().ok());  // its rows are in a table from here on
  disk_.Set(DiskFault::kNoRead);
  uint64_t unreadable = 0;
  const Status walked = index_->ForEach([](const ObjectName&, const Row&) {}, &unreadable);
  EXPECT_EQ(walked.code(), StatusCode::kUnavailable) << walked;
  disk_.Set(DiskFault::kNone);
  EXPECT_EQ(RowsNow().size(), 2000U);
}

TEST_F(RegionIndexTest, TheRangesThatItIsSplitIntoHaveEachRowOnce) {
  ASSERT_TRUE(Open().ok());
  EXPECT_EQ(index_->Split(4).size(), 1U) << "there is nothing";
  constexpr NamespaceRef kLast{NamespaceId(UINT32_MAX), UINT32_MAX};
  RowBatch batch;
  for (const NamespaceRef ns : {kNs, kOtherNs, NamespaceRef{kNs.id, kNs.generation + 1}, kLast}) {
    for (uint64_t i = 0; i < 500; ++i) batch.Put(NameOf(std::to_string(i), ns), MakeRow(i));
  }
  ASSERT_TRUE(index_->Write(batch, false).ok());
  for (const uint32_t each : {0U, 1U, 3U, 16U, 256U, 1000U}) {
    const std::vector<RegionIndex::KeyRange> ranges = index_->Split(each);
    Rows rows;
    uint64_t unreadable = 0, most = 0;
    for (const RegionIndex::KeyRange& range : ranges) {
      const uint64_t before = rows.size();
      const Status walked = index_->ForEachIn(
          range,
          [&](const ObjectName& name, const Row& row) {
            EXPECT_TRUE(rows.emplace(name, row).second) << each;
          },
          &unreadable);
      ASSERT_TRUE(walked.ok()) << walked;
      most = std::max<uint64_t>(most, rows.size() - before);
    }
    EXPECT_EQ(rows.size(), 2000U) << each;
    EXPECT_EQ(unreadable, 0U);
    EXPECT_LE(most, each > 2 ? 500 / each * 2 + 40 : 500) << each;
  }
}

// Its own log file would be written on the disk that is full, and end the process there.
TEST_F(RegionIndexTest, RocksDbKeepsNoLogFile) {
  ASSERT_TRUE(Open().ok());
  ASSERT_TRUE(Put("a", 1).ok());
  ASSERT_TRUE(index_->Reopen(false).ok());
  for (const auto& file : std::filesystem::directory_iterator(options_.folder))
    EXPECT_FALSE(file.path().filename().string().starts_with("LOG.") ||
                 file.path().filename() == "LOG")
        << file.path();
}

TEST_F(RegionIndexTest, ReadsOfOneThatCouldNotBeReopenedAreErrors) {
  options_.env = disk_.env();
  ASSERT_TRUE(Open().ok());
  ASSERT_TRUE(Put("a", 1).ok());
  disk_.Set(DiskFault::kReadOnly);
  ASSERT_FALSE(index_->Reopen(true).ok());
  EXPECT_EQ(index_->Meta("view").status().code(), StatusCode::kUnavailable);
  uint64_t unreadable = 0;
  EXPECT_FALSE(index_->ForEach([](const ObjectName&, const Row&) {}, &unreadable).ok());
}

// Rows of the same few names over and over, and of ever new ones as far as there may be.
TEST_F(RegionIndexTest, AnIndexThatIsAskedForRoomStaysBelowItsMost) {
  options_.bytes_max = 16 * kMiB;
  ASSERT_TRUE(Open().ok());
  const uint64_t rows_max = RegionIndex::RowsMax(options_.bytes_max);
  EXPECT_GT(rows_max, 30000U);
  uint64_t largest = 0;
  for (uint64_t i = 0; i < 4 * rows_max;) {
    if (!testing::Eventually([&] { return index_->HasRoom(); })) break;
    RowBatch batch;
    for (int k = 0; k < 200; ++k, ++i) {
      const uint64_t key = i < 2 * rows_max ? i % 100 : i % rows_max;
      batch.Put(NameOf(std::to_string(key)), MakeRow(i));
    }
    ASSERT_TRUE(index_->Write(batch, false).ok());
    largest = std::max(largest, index_->disk_bytes());
  }
  EXPECT_TRUE(testing::Eventually([&] { return index_->HasRoom(); })) << "room comes by itself";
  EXPECT_LE(largest, options_.bytes_max);
  EXPECT_GT(largest, options_.bytes_max / 8);
  EXPECT_EQ(RowsNow().size(), rows_max);
}

TEST_F(RegionIndexTest, WithoutRoomItSaysSoUntilItIsMerged) {
  options_.bytes_max = 16 * kMiB;
  ASSERT_TRUE(Open().ok());
  EXPECT_TRUE(index_->HasRoom());
  RowBatch batch;
  for (uint64_t i = 0; i < 70000; ++i) batch.Put(NameOf(std::to_string(i)), MakeRow(i));
  ASSERT_TRUE(index_->Write(batch, false).ok());
  EXPECT_FALSE(index_->HasRoom()) << "the log, its table, and that merged";
  EXPECT_GT(index_->disk_bytes_needed(), 3 * index_->disk_bytes() / 2);
  options_.bytes_max = 0;
  ASSERT_TRUE(Open().ok());
  EXPECT_TRUE(index_->HasRoom()) << "without a bound there always is";
}

}  // namespace
}  // namespace ems::ssd
