// What must hold: whatever has happened to the files of an index, no row is another than the one
// that was written, and no Put or Delete that was synced is left out without a word.
#include <gtest/gtest.h>
#include <rocksdb/db.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "mp_server/ssd/disk/region_index.h"
#include "tests/mp_server/ssd/disk/region_index_fixture.h"

namespace ems::ssd {
namespace {

namespace fs = std::filesystem;
using testing::MakeRow;
using testing::NameOf;
using testing::Rows;
using testing::Same;

class RegionIndexDamageTest : public testing::RegionIndexTest {};

TEST_F(RegionIndexDamageTest, FilesThatSayNonsenseAreDataLoss) {
  ASSERT_TRUE(Open().ok());
  ASSERT_TRUE(Put("a", 1).ok());
  ASSERT_TRUE(Open().ok());  // its rows are in a table now
  index_.reset();
  const std::string garbage(3000, '\x5a');
  struct Case {
    std::string begin, end, contents;
  };
  for (const Case& one : std::vector<Case>{{"CURRENT", "", garbage},
                                           {"CURRENT", "", ""},
                                           {"CURRENT", "", "MANIFEST-999999\n"},
                                           {"MANIFEST", "", garbage},
                                           {"MANIFEST", "", ""},
                                           {"0", ".sst", garbage},
                                           {"0", ".sst", ""}}) {
    const std::string damaged = Copy("damaged");
    const std::string path = Newest(damaged, one.begin, one.end);
    ASSERT_NE(path, "") << one.begin << one.end;
    std::ofstream(path, std::ios::binary | std::ios::trunc) << one.contents;
    const auto opened = OpenAt(damaged);
    EXPECT_EQ(opened.status().code(), StatusCode::kDataLoss)
        << path << " of " << one.contents.size() << " bytes: " << opened.status();
  }
  for (const char* begin : {"MANIFEST", "0"}) {
    const std::string damaged = Copy("damaged");
    fs::remove(Newest(damaged, begin, begin[0] == '0' ? ".sst" : ""));
    EXPECT_EQ(OpenAt(damaged).status().code(), StatusCode::kDataLoss) << begin << " is gone";
  }
}

// Whatever is wrong with a file, no row is another than the one that was written.
TEST_F(RegionIndexDamageTest, ADamagedByteAnywhereInventsNoRow) {
  ASSERT_TRUE(Open().ok());
  for (uint64_t i = 0; i < 20; ++i) ASSERT_TRUE(Put("table " + std::to_string(i), i).ok());
  ASSERT_TRUE(Open().ok());
  for (uint64_t i = 20; i < 40; ++i) ASSERT_TRUE(Put("log " + std::to_string(i), i).ok());
  const Rows written = RowsNow();
  ASSERT_EQ(written.size(), 40U);
  const std::string clean = Copy("clean");
  for (const std::string& path : {Newest(clean, "CURRENT", ""), Newest(clean, "MANIFEST", ""),
                                  Newest(clean, "0", ".sst"), Newest(clean, "0", ".log")}) {
    ASSERT_NE(path, "");
    const uint64_t size = fs::file_size(path);
    for (const uint64_t at : {uint64_t{0}, size / 3, size - 1}) {
      const std::string damaged = Copy("damaged");
      std::fstream file(damaged + "/" + fs::path(path).filename().string(),
                        std::ios::in | std::ios::out | std::ios::binary);
      file.seekg(static_cast<std::streamoff>(at));
      const int byte = file.get();
      file.seekp(static_cast<std::streamoff>(at));
      file.put(static_cast<char>(byte ^ 0x20));
      file.close();
      const auto opened = OpenAt(damaged);
      if (!opened.ok()) {
        EXPECT_EQ(opened.status().code(), StatusCode::kDataLoss) << path << " at " << at;
        continue;
      }
      uint64_t unreadable = 0;
      const Status walked = (*opened)->ForEach(
          [&](const ObjectName& name, const Row& row) {
            const auto it = written.find(name);
            ASSERT_NE(it, written.end()) << path << " at " << at;
            EXPECT_TRUE(Same(it->second, row)) << path << " at " << at;
          },
          &unreadable);
      EXPECT_TRUE(walked.ok() || walked.code() == StatusCode::kDataLoss) << walked;
      EXPECT_EQ(unreadable, 0U);
    }
  }
}

// A torn end and a flipped bit look alike in the log; what had been synced cannot be torn.
TEST_F(RegionIndexDamageTest, ASyncedDeleteThatCannotBeReadIsDataLoss) {
  ASSERT_TRUE(Open().ok());
  ASSERT_TRUE(Put("removed", 1).ok() && Put("replaced", 2).ok());
  ASSERT_TRUE(Open().ok());  // their rows are in a table now
  const std::string log = fs::path(Newest(options_.folder, "0", ".log")).filename().string();
  RowBatch batch;
  batch.Delete(NameOf("removed"));
  ASSERT_TRUE(index_->Write(batch, true).ok());
  batch.Clear();
  batch.Put(NameOf("replaced"), MakeRow(3));
  ASSERT_TRUE(index_->Write(batch, false).ok());
  ASSERT_TRUE(index_->SyncLog().ok());
  const uint64_t end = fs::file_size(options_.folder + "/" + log);
  ASSERT_TRUE(Put("behind", 4).ok());
  for (uint64_t cut = 0; cut < end; cut += 7) {
    const std::string torn = Copy("torn");
    fs::resize_file(torn + "/" + log, cut);
    EXPECT_EQ(OpenAt(torn).status().code(), StatusCode::kDataLoss) << "cut at " << cut;
  }
  for (uint64_t at = 0; at < end; at += 5) {
    const std::string damaged = Copy("damaged");
    FlipBit(damaged + "/" + log, at, static_cast<char>(1 << at % 8));
    EXPECT_EQ(OpenAt(damaged).status().code(), StatusCode::kDataLoss) << "flipped at " << at;
  }
  const std::string torn = Copy("torn");
  fs::resize_file(torn + "/" + log, end + 3);
  const auto after = OpenAt(torn);
  ASSERT_TRUE(after.ok()) << "what was never synced may be torn: " << after.status();
  ExpectRows(RowsOf(**after), {{"replaced", 3}});
}

// The list of tables without its last entry: rows of older tables would be back.
TEST_F(RegionIndexDamageTest, AManifestThatEndsEarlyIsDataLoss) {
  ASSERT_TRUE(Open().ok());
  ASSERT_TRUE(Put("a", 1).ok());
  ASSERT_TRUE(Open().ok());
  const std::string clean = Copy("clean");
  const std::string manifest = fs::path(Newest(clean, "MANIFEST", "")).filename().string();
  const uint64_t end = fs::file_size(clean + "/" + manifest);
  for (uint64_t cut = 0; cut < end; cut += 11) {
    const std::string torn = Copy("torn");
    fs::resize_file(torn + "/" + manifest, cut);
    EXPECT_EQ(OpenAt(torn).status().code(), StatusCode::kDataLoss) << "cut at " << cut;
  }
}

TEST_F(RegionIndexDamageTest, WithoutTheEndsOfSyncedFilesItIsDamaged) {
  ASSERT_TRUE(Open().ok());
  ASSERT_TRUE(Put("a", 1).ok());
  const std::string damaged = Copy("damaged");
  fs::remove(damaged + "/SYNCED");
  for (int i = 0; i < 2; ++i)
    EXPECT_EQ(OpenAt(damaged).status().code(), StatusCode::kDataLoss) << "and stays so";
}

// Of a version that kept none: from now on they are kept.
TEST_F(RegionIndexDamageTest, AnIndexThatNeverHadEndsIsTakenOver) {
  ASSERT_TRUE(Open().ok());
  ASSERT_TRUE(Put("a", 1).ok());
  index_.reset();
  {
    rocksdb::DB* raw = nullptr;
    ASSERT_TRUE(rocksdb::DB::Open(rocksdb::Options(), options_.folder, &raw).ok());
    const std::unique_ptr<rocksdb::DB> db(raw);
    ASSERT_TRUE(db->Delete(rocksdb::WriteOptions(), "msynced_ends").ok());
  }
  fs::remove(options_.folder + "/SYNCED");
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(Open().ok());
    ExpectRows(RowsNow(), {{"a", 1}});
    EXPECT_TRUE(fs::exists(options_.folder + "/SYNCED"));
  }
}

// A version that keeps none has worked on it meanwhile, and left the ends of before.
TEST_F(RegionIndexDamageTest, EndsThatAnOlderVersionHasLeftBehindAreVoid) {
  ASSERT_TRUE(Open().ok());
  ASSERT_TRUE(Put("a", 1, true).ok());
  index_.reset();
  for (const char* value : {"b", "c"}) {
    rocksdb::DB* raw = nullptr;
    ASSERT_TRUE(rocksdb::DB::Open(rocksdb::Options(), options_.folder, &raw).ok());
    const std::unique_ptr<rocksdb::DB> db(raw);
    ASSERT_TRUE(db->Put(rocksdb::WriteOptions(), "mlater", value).ok());
  }
  ASSERT_TRUE(Open().ok());
  ExpectRows(RowsNow(), {{"a", 1}});
  EXPECT_EQ(*index_->Meta("later"), "c");
}

}  // namespace
}  // namespace ems::ssd
