// What must hold: a change is there after a restart, whole; rows come in the order of their keys;
// damage is refused with what an operator may do. The full disk: controller_store_test.cc.
#include "mp_controller/rows/durable_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rocksdb/db.h>

#include <filesystem>
#include <fstream>
#include <memory>

#include "tests/mp_controller/temp_dir.h"

namespace ems::controller {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::unique_ptr<DurableRows> Open(const std::string& path) {
  auto rows = DurableRows::Open(path, "Do this.");
  EXPECT_TRUE(rows.ok()) << rows.status();
  return *std::move(rows);
}

TEST(DurableRowsTest, AChangeIsThereAfterReopeningInOrder) {
  const TempDir dir;
  {
    const auto rows = Open(dir.path());
    ASSERT_TRUE(rows->Write({.put = {{"b", "2"}, {"a", "1"}, {"c", "3"}}, .drop = {}}).ok());
    ASSERT_TRUE(rows->Write({.put = {{"d", ""}}, .drop = {"b", "not there"}}).ok());
  }
  const auto rows = Open(dir.path());
  std::vector<std::string> found;
  ASSERT_TRUE(rows->ForEach([&](std::string_view key, std::string_view value) {
                    found.push_back(fmt::format("{}={}", key, value));
                    return OkStatus();
                  })
                  .ok());
  EXPECT_THAT(found, ElementsAre("a=1", "c=3", "d="));
}

TEST(DurableRowsTest, ARowThatCannotBeReadIsDamageWithAdvice) {
  const TempDir dir;
  const auto rows = Open(dir.path());
  ASSERT_TRUE(rows->Write({.put = {{"a", "1"}}, .drop = {}}).ok());
  const Status status = rows->ForEach([](std::string_view, std::string_view) {
    return Error(StatusCode::kDataLoss, "record a cannot be read");
  });
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(Message(status), HasSubstr(dir.path()));
  EXPECT_THAT(Message(status), HasSubstr("record a cannot be read. Nothing was changed. Do this."));
}

TEST(DurableRowsTest, RowsOfAnotherFormatAreRefusedAndLeftAsTheyAre) {
  const TempDir dir;
  ASSERT_TRUE(Open(dir.path())->Write({.put = {{"a", "1"}}, .drop = {}}).ok());
  const std::string marker = dir.path() + "/EMS_CONTROLLER_STORE";
  for (const char* format : {"format 1", "format 4"}) {
    std::ofstream(marker) << format << "\n";
    const Status status = DurableRows::Open(dir.path(), "Do this.").status();
    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(Message(status), HasSubstr(dir.path() + " has \"" + format));
    EXPECT_THAT(Message(status), HasSubstr("4096 slots"));
    EXPECT_THAT(Message(status), HasSubstr("Do this."));
  }
  std::ofstream(marker) << "format 2\n";
  EXPECT_TRUE(Open(dir.path())->Write({.put = {{"b", "2"}}, .drop = {}}).ok());
}

// A crash while it was made: nothing had been stored by then.
TEST(DurableRowsTest, AnEmptyMarkerIsMadeAnew) {
  const TempDir dir;
  { const auto rows = Open(dir.path()); }
  const std::string marker = dir.path() + "/EMS_CONTROLLER_STORE";
  std::ofstream(marker, std::ios::trunc).flush();
  { const auto rows = Open(dir.path()); }
  std::string line;
  std::getline(std::ifstream(marker), line);
  EXPECT_EQ(line, "format 3");
}

// Of a version that kept none: from now on there is one.
TEST(DurableRowsTest, RowsWithoutALedgerAreTakenOver) {
  const TempDir dir;
  const std::string marker = dir.path() + "/EMS_CONTROLLER_STORE";
  ASSERT_TRUE(Open(dir.path())->Write({.put = {{"a", "1"}}, .drop = {}}).ok());
  {
    rocksdb::DB* raw = nullptr;
    ASSERT_TRUE(rocksdb::DB::Open(rocksdb::Options(), dir.path() + "/store", &raw).ok());
    const std::unique_ptr<rocksdb::DB> db(raw);
    ASSERT_TRUE(db->Delete(rocksdb::WriteOptions(), "ledger").ok());
  }
  EXPECT_EQ(DurableRows::Open(dir.path(), "").status().code(), StatusCode::kDataLoss)
      << "it had one";
  std::ofstream(marker) << "format 2\n";
  std::filesystem::remove(dir.path() + "/CHANGES");
  ASSERT_TRUE(Open(dir.path())->Write({.put = {{"b", "2"}}, .drop = {"a"}}).ok());
  std::string line;
  std::getline(std::ifstream(marker), line);
  EXPECT_EQ(line, "format 3");
  std::string keys;
  ASSERT_TRUE(Open(dir.path())
                  ->ForEach([&](std::string_view key, std::string_view) {
                    keys += key;
                    return OkStatus();
                  })
                  .ok());
  EXPECT_EQ(keys, "b");
}

// An older state of the database, which is sound by itself.
TEST(DurableRowsTest, ChangesThatAreGoneAreDamage) {
  const TempDir dir;
  const std::string store = dir.path() + "/store";
  const std::string before = dir.path() + "/before";
  ASSERT_TRUE(Open(dir.path())->Write({.put = {{"a", "1"}}, .drop = {}}).ok());
  std::filesystem::copy(store, before, std::filesystem::copy_options::recursive);
  ASSERT_TRUE(Open(dir.path())->Write({.put = {{"a", "2"}}, .drop = {}}).ok());
  std::filesystem::remove_all(store);
  std::filesystem::rename(before, store);
  const Status status = DurableRows::Open(dir.path(), "Do this.").status();
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(Message(status), HasSubstr("it has lost the last 1 of 2 changes"));
  EXPECT_THAT(Message(status), HasSubstr("Do this."));
}

TEST(DurableRowsTest, RowsThatDoNotAddUpAreDamage) {
  const TempDir dir;
  ASSERT_TRUE(Open(dir.path())->Write({.put = {{"a", "1"}, {"b", "2"}}, .drop = {}}).ok());
  {
    rocksdb::DB* raw = nullptr;
    ASSERT_TRUE(rocksdb::DB::Open(rocksdb::Options(), dir.path() + "/store", &raw).ok());
    const std::unique_ptr<rocksdb::DB> db(raw);
    ASSERT_TRUE(db->Delete(rocksdb::WriteOptions(), "a").ok());
  }
  EXPECT_EQ(DurableRows::Open(dir.path(), "").status().code(), StatusCode::kDataLoss);
}

}  // namespace
}  // namespace ems::controller
