// What must hold: whatever is not as it was when it was synced is damage, what came behind it is
// nobody's business here, and a file that may go is no damage when it has gone.
#include "mp_server/ssd/disk/synced_ends.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "common/hash.h"
#include "tests/mp_server/ssd/ssd_fixture.h"

namespace ems::ssd {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLog = "000007.log";
constexpr const char* kManifest = "MANIFEST-000005";

class SyncedEndsTest : public ::testing::Test {
 protected:
  Status Load() {
    ends_ = std::make_unique<SyncedEnds>(folder_.path());
    return ends_->LoadAndCheck();
  }
  void Write(const std::string& name, const std::string& contents) const {
    std::ofstream(folder_ / name, std::ios::binary | std::ios::trunc) << contents;
  }
  Status Set(const std::string& name, const std::string& contents) const {
    return ends_->Set(name, contents.size(), Hash64(std::as_bytes(std::span(contents))));
  }
  // A folder with a log and a MANIFEST that have been synced.
  void Make() {
    ASSERT_TRUE(Load().ok());
    ASSERT_FALSE(ends_->found());
    ASSERT_TRUE(ends_->Keep().ok());
    Write(kManifest, "of the tables");
    Write("CURRENT", std::string(kManifest) + "\n");
    Write(kLog, "rows and deletes");
    ASSERT_TRUE(Set(kManifest, "of the tables").ok() && Set(kLog, "rows and deletes").ok());
    ASSERT_TRUE(Load().ok());
    ASSERT_TRUE(ends_->found());
  }
  void FlipBit(const std::string& name, uint64_t at, char bit) const {
    std::fstream file(folder_ / name, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(at));
    const char byte = static_cast<char>(file.get());
    file.seekp(static_cast<std::streamoff>(at));
    file.put(static_cast<char>(byte ^ bit));
    ASSERT_TRUE(file.good());
  }

  const testing::TempFolder folder_;
  std::unique_ptr<SyncedEnds> ends_;
};

TEST_F(SyncedEndsTest, CoversLogsAndManifestsAlone) {
  for (const char* name : {kLog, kManifest, "12345678.log"})
    EXPECT_TRUE(SyncedEnds::Covers(name)) << name;
  for (const char* name : {"000007.sst", "CURRENT", "SYNCED", "MANIFEST-", "MANIFEST-1x", ".log",
                           "LOG", "000005.dbtmp", "IDENTITY"})
    EXPECT_FALSE(SyncedEnds::Covers(name)) << name;
}

TEST_F(SyncedEndsTest, WhatHasComeBehindTheLastSyncIsNotLookedAt) {
  Make();
  for (const char* tail : {"", "x", "a torn end"}) {
    Write(kLog, std::string("rows and deletes") + tail);
    EXPECT_TRUE(Load().ok()) << tail;
  }
}

TEST_F(SyncedEndsTest, EachFlippedBitIsDamage) {
  Make();
  for (const std::string& name : {std::string(kLog), std::string(kManifest)}) {
    for (uint64_t at = 0; at < fs::file_size(folder_ / name); ++at) {
      FlipBit(name, at, static_cast<char>(1 << at % 8));
      EXPECT_EQ(Load().code(), StatusCode::kDataLoss) << name << " at " << at;
      FlipBit(name, at, static_cast<char>(1 << at % 8));
    }
  }
  EXPECT_TRUE(Load().ok());
}

TEST_F(SyncedEndsTest, AFileThatEndsEarlyOrIsGoneIsDamage) {
  Make();
  Write(kLog, "rows and delete");
  EXPECT_EQ(Load().code(), StatusCode::kDataLoss);
  Write(kLog, "");
  EXPECT_EQ(Load().code(), StatusCode::kDataLoss);
  fs::remove(folder_ / kLog);
  EXPECT_EQ(Load().code(), StatusCode::kDataLoss);
}

TEST_F(SyncedEndsTest, AForgottenFileMayGo) {
  Make();
  ASSERT_TRUE(ends_->Forget(kLog).ok());
  ASSERT_TRUE(ends_->Forget("000001.log").ok()) << "one that was never synced";
  ASSERT_TRUE(ends_->Forget("000007.sst").ok()) << "one that has no end";
  fs::remove(folder_ / kLog);
  EXPECT_TRUE(Load().ok());
  fs::remove(folder_ / kManifest);
  EXPECT_EQ(Load().code(), StatusCode::kDataLoss) << "the other one is not forgotten";
}

TEST_F(SyncedEndsTest, TheLaterEndCounts) {
  Make();
  Write(kLog, "rows and deletes and more");
  ASSERT_TRUE(Set(kLog, "rows and deletes and more").ok());
  EXPECT_TRUE(Load().ok());
  Write(kLog, "rows and deletes and mope");
  EXPECT_EQ(Load().code(), StatusCode::kDataLoss);
}

TEST_F(SyncedEndsTest, ADamagedSlotLeavesTheOneBefore) {
  Make();
  ASSERT_TRUE(Set(kLog, "rows").ok());  // two slots hold the log's end: 16 bytes, and 4
  Write(kLog, "rows");
  ASSERT_TRUE(Load().ok());
  const auto whole = fs::file_size(folder_ / SyncedEnds::kFileName);
  EXPECT_EQ(whole, 4096U + 512U);
  int refused = 0;
  for (const uint64_t at : {uint64_t{20}, uint64_t{4096 + 20}}) {
    FlipBit(std::string(SyncedEnds::kFileName), at, 1);
    refused += Load().ok() ? 0 : 1;
    EXPECT_TRUE(ends_->found());
    FlipBit(std::string(SyncedEnds::kFileName), at, 1);
  }
  EXPECT_EQ(refused, 1) << "the older slot says more than the log has";
}

TEST_F(SyncedEndsTest, WithoutASoundSlotNoneAreFound) {
  Make();
  FlipBit(std::string(SyncedEnds::kFileName), 100, 1);
  FlipBit(std::string(SyncedEnds::kFileName), 4096 + 100, 1);
  EXPECT_TRUE(Load().ok());
  EXPECT_FALSE(ends_->found());
  Write(std::string(SyncedEnds::kFileName), "short");
  EXPECT_TRUE(Load().ok());
  EXPECT_FALSE(ends_->found());
}

TEST_F(SyncedEndsTest, NothingIsWrittenBeforeItIsKept) {
  ASSERT_TRUE(Load().ok());
  Write(kLog, "rows");
  ASSERT_TRUE(Set(kLog, "rows").ok());
  EXPECT_FALSE(fs::exists(folder_ / SyncedEnds::kFileName));
  ASSERT_TRUE(ends_->Keep().ok());
  fs::remove(folder_ / kLog);
  EXPECT_EQ(Load().code(), StatusCode::kDataLoss) << "what was set before is kept, too";
}

TEST_F(SyncedEndsTest, SoManyFilesAndNoMore) {
  ASSERT_TRUE(Load().ok());
  ASSERT_TRUE(ends_->Keep().ok());
  for (size_t i = 0; i < SyncedEnds::kFilesMax + 3; ++i) {
    const std::string name = fmt::format("{:06}.log", i);
    Write(name, "rows");
    ASSERT_TRUE(Set(name, "rows").ok());
  }
  for (size_t i = 0; i < 3; ++i) fs::remove(folder_ / fmt::format("{:06}.log", i));
  EXPECT_TRUE(Load().ok()) << "those synced last are covered";
  fs::remove(folder_ / "000003.log");
  EXPECT_EQ(Load().code(), StatusCode::kDataLoss);
}

// It makes a new MANIFEST, removes the old one and the logs, and leaves the ends as they are.
TEST_F(SyncedEndsTest, AVersionThatKeepsNoneMakesThemVoid) {
  Make();
  fs::remove(folder_ / kLog);
  EXPECT_EQ(Load().code(), StatusCode::kDataLoss);
  Write("MANIFEST-000009", "of other tables");
  Write("CURRENT", "MANIFEST-000009\n");
  EXPECT_EQ(Load().code(), StatusCode::kDataLoss) << "the old one is there still";
  fs::remove(folder_ / kManifest);
  EXPECT_TRUE(Load().ok());
  EXPECT_TRUE(ends_->found());
  Write("CURRENT", "MANIFEST-000008\n");
  EXPECT_EQ(Load().code(), StatusCode::kDataLoss) << "CURRENT names none that is there";
}

TEST_F(SyncedEndsTest, AFolderThatIsNoneIsUnavailable) {
  SyncedEnds none(folder_ / "none");
  EXPECT_TRUE(none.LoadAndCheck().ok()) << "nothing was ever synced there";
  EXPECT_EQ(none.Keep().code(), StatusCode::kUnavailable);
}

}  // namespace
}  // namespace ems::ssd
