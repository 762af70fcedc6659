// What must hold: an end is written down when a sync has succeeded and at no other time, it is
// forgotten before its file goes, and nobody gets the folder's lock over damaged files.
#include "mp_server/ssd/disk/index_files.h"

#include <gtest/gtest.h>
#include <rocksdb/env.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "mp_server/ssd/disk/synced_ends.h"
#include "tests/mp_server/ssd/rocksdb_faults.h"
#include "tests/mp_server/ssd/ssd_fixture.h"

namespace ems::ssd {
namespace {

namespace fs = std::filesystem;
using testing::DiskFault;

class IndexFilesTest : public ::testing::Test {
 protected:
  IndexFilesTest() : ends_(folder_.path()), env_(MakeIndexEnv(disk_.env(), &ends_, &bytes_)) {
    EXPECT_TRUE(ends_.LoadAndCheck().ok() && ends_.Keep().ok());
  }
  std::unique_ptr<rocksdb::WritableFile> Make(const std::string& name) {
    std::unique_ptr<rocksdb::WritableFile> file;
    EXPECT_TRUE(env_->NewWritableFile(folder_ / name, &file, rocksdb::EnvOptions()).ok());
    return file;
  }
  // What the folder's next owner finds.
  Status Check() const { return SyncedEnds(folder_.path()).LoadAndCheck(); }
  void Cut(const std::string& name, uint64_t bytes) const {
    fs::resize_file(folder_ / name, bytes);
  }

  const testing::TempFolder folder_;
  testing::FaultyDisk disk_;
  SyncedEnds ends_;
  IndexBytes bytes_;
  std::unique_ptr<rocksdb::Env> env_;
};

TEST_F(IndexFilesTest, WhatWasSyncedMustBeThereAndNothingElse) {
  const auto file = Make("000001.log");
  ASSERT_TRUE(file->Append("12345").ok() && file->Append("678").ok());
  Cut("000001.log", 0);
  EXPECT_TRUE(Check().ok()) << "nothing of it was synced";
  const auto other = Make("000002.log");
  ASSERT_TRUE(other->Append("12345").ok() && other->Append("678").ok() && other->Sync().ok());
  ASSERT_TRUE(other->Append("9").ok());
  EXPECT_TRUE(Check().ok());
  Cut("000002.log", 8);
  EXPECT_TRUE(Check().ok());
  Cut("000002.log", 7);
  EXPECT_EQ(Check().code(), StatusCode::kDataLoss);
}

// Notes whether a file's name is durable when its first bytes are.
class NameKeeper final : public rocksdb::FileSystemWrapper {
 public:
  using FileSystemWrapper::FileSystemWrapper;
  const char* Name() const override { return "NameKeeper"; }
  rocksdb::IOStatus NewDirectory(const std::string& path, const rocksdb::IOOptions& options,
                                 std::unique_ptr<rocksdb::FSDirectory>* folder,
                                 rocksdb::IODebugContext* debug) override {
    class Folder final : public rocksdb::FSDirectoryWrapper {
     public:
      Folder(std::unique_ptr<rocksdb::FSDirectory> below, int* synced)
          : FSDirectoryWrapper(std::move(below)), synced_(synced) {}
      rocksdb::IOStatus Fsync(const rocksdb::IOOptions& how,
                              rocksdb::IODebugContext* why) override {
        ++*synced_;
        return FSDirectoryWrapper::Fsync(how, why);
      }

     private:
      int* const synced_;
    };
    auto made = FileSystemWrapper::NewDirectory(path, options, folder, debug);
    if (made.ok()) *folder = std::make_unique<Folder>(std::move(*folder), &synced_);
    return made;
  }
  int synced() const { return synced_; }

 private:
  int synced_ = 0;
};

// An end that outlives a power cut while its file's name does not would be taken for damage.
TEST_F(IndexFilesTest, AFilesNameIsDurableBeforeItHasAnEnd) {
  const auto disk = std::make_shared<NameKeeper>(rocksdb::FileSystem::Default());
  const auto below = rocksdb::NewCompositeEnv(disk);
  const auto env = MakeIndexEnv(below.get(), &ends_, &bytes_);
  std::unique_ptr<rocksdb::WritableFile> file;
  int synced = 0;
  for (const char* name : {"000001.log", "MANIFEST-000004"}) {
    ASSERT_TRUE(env->NewWritableFile(folder_ / name, &file, rocksdb::EnvOptions()).ok());
    EXPECT_EQ(disk->synced(), ++synced) << name;
  }
  ASSERT_TRUE(env->NewWritableFile(folder_ / "000005.sst", &file, rocksdb::EnvOptions()).ok());
  EXPECT_EQ(disk->synced(), synced) << "no end is kept of those";
}

TEST_F(IndexFilesTest, ManifestsAreCoveredAndTablesAreNot) {
  const auto manifest = Make("MANIFEST-000004");
  ASSERT_TRUE(manifest->Append("tables").ok() && manifest->Fsync().ok());
  const auto table = Make("000005.sst");
  ASSERT_TRUE(table->Append("rows").ok() && table->Sync().ok());
  Cut("000005.sst", 1);
  EXPECT_TRUE(Check().ok()) << "RocksDB's own checksums are for those";
  Cut("MANIFEST-000004", 3);
  EXPECT_EQ(Check().code(), StatusCode::kDataLoss);
}

TEST_F(IndexFilesTest, AfterAFailedWriteOrSyncNoLaterEndIsBelieved) {
  for (const DiskFault fault : {DiskFault::kNoSync, DiskFault::kFull}) {
    const std::string name = fault == DiskFault::kFull ? "000001.log" : "000002.log";
    const auto file = Make(name);
    ASSERT_TRUE(file->Append("1234").ok() && file->Sync().ok());
    disk_.Set(fault);
    EXPECT_EQ(file->Append("5678").ok(), fault != DiskFault::kFull);
    EXPECT_FALSE(file->Sync().ok());
    disk_.Set(DiskFault::kNone);
    (void)file->Append("9");
    EXPECT_TRUE(file->Sync().ok());
    Cut(name, 4);
    EXPECT_TRUE(Check().ok()) << "the end is that of the last good sync";
    Cut(name, 3);
    EXPECT_EQ(Check().code(), StatusCode::kDataLoss);
    fs::remove(folder_ / name);
    ASSERT_TRUE(ends_.Forget(name).ok());
  }
}

TEST_F(IndexFilesTest, AFileIsForgottenBeforeItGoesOrIsMadeAnew) {
  for (const bool anew : {false, true}) {
    auto file = Make("000001.log");
    ASSERT_TRUE(file->Append("1234").ok() && file->Sync().ok());
    file.reset();
    if (anew) {
      file = Make("000001.log");
    } else {
      ASSERT_TRUE(env_->DeleteFile(folder_ / "000001.log").ok());
      EXPECT_FALSE(fs::exists(folder_ / "000001.log"));
    }
    EXPECT_TRUE(Check().ok()) << anew;
  }
}

TEST_F(IndexFilesTest, DamagedFilesAreNotLocked) {
  const auto file = Make("000001.log");
  ASSERT_TRUE(file->Append("1234").ok() && file->Sync().ok());
  rocksdb::FileLock* lock = nullptr;
  ASSERT_TRUE(env_->LockFile(folder_ / "LOCK", &lock).ok());
  ASSERT_TRUE(env_->UnlockFile(lock).ok());
  Cut("000001.log", 3);
  EXPECT_TRUE(env_->LockFile(folder_ / "LOCK", &lock).IsCorruption());
  EXPECT_TRUE(disk_.env()->LockFile(folder_ / "LOCK", &lock).ok()) << "it was given back";
  ASSERT_TRUE(disk_.env()->UnlockFile(lock).ok());
}

TEST_F(IndexFilesTest, WhatTheFilesTakeIsCountedInBlocks) {
  const auto log = Make("000001.log");
  EXPECT_EQ(bytes_.all, 0U);
  ASSERT_TRUE(log->Append("x").ok());
  EXPECT_EQ(bytes_.all, 4096U);
  ASSERT_TRUE(log->Append(std::string(4095, 'x')).ok());
  EXPECT_EQ(bytes_.all, 4096U);
  ASSERT_TRUE(log->Append("x").ok());
  EXPECT_EQ(bytes_.all, 8192U);
  auto table = Make("000002.sst");
  ASSERT_TRUE(table->Append(std::string(5000, 'x')).ok() && table->Close().ok());
  EXPECT_EQ(bytes_.all, 16384U);
  EXPECT_EQ(bytes_.logs, 8192U);
  const uint64_t changes = bytes_.changes;
  ASSERT_TRUE(env_->RenameFile(folder_ / "000002.sst", folder_ / "000001.log").ok());
  EXPECT_EQ(bytes_.all, 8192U) << "the log is gone with that";
  table = Make("000003.sst");
  ASSERT_TRUE(table->Append(std::string(5000, 'x')).ok() && table->Close().ok());
  table = Make("000003.sst");
  EXPECT_EQ(bytes_.all, 8192U) << "begun again";
  ASSERT_TRUE(env_->DeleteFile(folder_ / "000003.sst").ok());
  EXPECT_EQ(bytes_.all, 8192U);
  EXPECT_EQ(bytes_.changes, changes + 3);
}

TEST_F(IndexFilesTest, WhatIsThereCountsFromTheStart) {
  std::ofstream(folder_ / "000001.log") << std::string(5000, 'x');
  std::ofstream(folder_ / "000002.sst") << "x";
  rocksdb::FileLock* lock = nullptr;
  ASSERT_TRUE(env_->LockFile(folder_ / "LOCK", &lock).ok());
  EXPECT_EQ(bytes_.logs, 8192U);
  EXPECT_EQ(bytes_.all, 8192U + 4096U + 8192U) << "the ends are a file, too";
  ASSERT_TRUE(env_->DeleteFile(folder_ / "000001.log").ok());
  EXPECT_EQ(bytes_.logs, 0U);
  ASSERT_TRUE(env_->UnlockFile(lock).ok());
}

}  // namespace
}  // namespace ems::ssd
