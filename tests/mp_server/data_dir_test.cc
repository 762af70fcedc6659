// What must hold: one process a folder, and the highest view survives whatever happens to the file.
#include "mp_server/data_dir.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace ems::server {
namespace {

class DataDirTest : public ::testing::Test {
 protected:
  DataDirTest()
      : path_(fmt::format("{}ems_data_dir_{}_{}", ::testing::TempDir(), ::getpid(),
                          ::testing::UnitTest::GetInstance()->current_test_info()->name())) {}
  ~DataDirTest() override { std::filesystem::remove_all(path_); }
  const std::string path_;
};

TEST_F(DataDirTest, ANewFolderHasNoView) {
  Result<DataDir> dir = DataDir::Open(path_ + "/deep/below");
  ASSERT_TRUE(dir.ok()) << dir.status();
  EXPECT_EQ(dir->highest_view(), ViewVersion());
}

TEST_F(DataDirTest, TheHighestViewSurvives) {
  {
    Result<DataDir> dir = DataDir::Open(path_);
    ASSERT_TRUE(dir.ok()) << dir.status();
    ASSERT_TRUE(dir->SetHighestView({3, 14}).ok());
    ASSERT_TRUE(dir->SetHighestView({3, 15}).ok());
    EXPECT_EQ(dir->highest_view(), ViewVersion(3, 15));
  }
  Result<DataDir> again = DataDir::Open(path_);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->highest_view(), ViewVersion(3, 15));
}

TEST_F(DataDirTest, ASecondProcessIsToldWhichFolder) {
  Result<DataDir> first = DataDir::Open(path_);
  ASSERT_TRUE(first.ok());
  const Status second = DataDir::Open(path_).status();
  EXPECT_EQ(second.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(Message(second)), ::testing::HasSubstr(path_));
  EXPECT_TRUE(first->SetHighestView({1, 1}).ok()) << "the first is undisturbed";
}

TEST_F(DataDirTest, TheLockMovesWithItsOwnerAndEndsWithIt) {
  {
    Result<DataDir> first = DataDir::Open(path_);
    ASSERT_TRUE(first.ok());
    const DataDir moved = std::move(*first);
    EXPECT_FALSE(DataDir::Open(path_).ok());
  }
  EXPECT_TRUE(DataDir::Open(path_).ok());
}

TEST_F(DataDirTest, ADamagedFileCountsAsNone) {
  {
    Result<DataDir> dir = DataDir::Open(path_);
    ASSERT_TRUE(dir.ok() && dir->SetHighestView({3, 14}).ok());
  }
  std::string bytes;
  {
    std::ifstream file(path_ + "/view", std::ios::binary);
    bytes.assign(std::istreambuf_iterator<char>(file), {});
  }
  ASSERT_FALSE(bytes.empty());
  for (size_t at = 0; at <= bytes.size(); ++at) {
    std::string damaged = bytes;
    if (at < bytes.size()) {
      damaged[at] ^= 0x10;
    } else {
      damaged.resize(bytes.size() / 2);
    }
    std::ofstream(path_ + "/view", std::ios::binary) << damaged;
    Result<DataDir> dir = DataDir::Open(path_);
    ASSERT_TRUE(dir.ok()) << dir.status();
    EXPECT_EQ(dir->highest_view(), ViewVersion()) << at;
  }
  std::ofstream(path_ + "/view", std::ios::binary) << "";
  EXPECT_TRUE(DataDir::Open(path_).ok());
}

TEST_F(DataDirTest, ALineageSurvivesUntilItIsEndedOrAnotherBegins) {
  uint64_t first = 0;
  {
    Result<DataDir> dir = DataDir::Open(path_);
    ASSERT_TRUE(dir.ok());
    EXPECT_EQ(dir->lineage(), 0u);
    EXPECT_TRUE(dir->EndLineage().ok()) << "there is none, and that is fine";
    ASSERT_TRUE(dir->BeginLineage().ok());
    first = dir->lineage();
    EXPECT_NE(first, 0u);
    ASSERT_TRUE(dir->SetHighestView({3, 14}).ok());
  }
  {
    Result<DataDir> dir = DataDir::Open(path_);
    ASSERT_TRUE(dir.ok());
    EXPECT_EQ(dir->lineage(), first);
    ASSERT_TRUE(dir->BeginLineage().ok());
    EXPECT_NE(dir->lineage(), first);
    ASSERT_TRUE(dir->EndLineage().ok());
    EXPECT_EQ(dir->lineage(), 0u);
  }
  Result<DataDir> dir = DataDir::Open(path_);
  ASSERT_TRUE(dir.ok());
  EXPECT_EQ(dir->lineage(), 0u);
  EXPECT_EQ(dir->highest_view(), ViewVersion(3, 14));
}

TEST_F(DataDirTest, ALineageThatCannotBeWrittenIsOverAllTheSame) {
  Result<DataDir> dir = DataDir::Open(path_);
  ASSERT_TRUE(dir.ok() && dir->BeginLineage().ok());
  std::filesystem::create_directories(path_ + "/lineage.next");  // stands in the way of the write
  EXPECT_TRUE(dir->BeginLineage().ok());
  EXPECT_EQ(dir->lineage(), 0u);
  EXPECT_FALSE(std::filesystem::exists(path_ + "/lineage"));
}

TEST_F(DataDirTest, AFolderThatCannotBeIsNamed) {
  std::filesystem::create_directories(path_);
  std::ofstream(path_ + "/file") << "x";
  const Status status = DataDir::Open(path_ + "/file/below").status();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status;
  EXPECT_THAT(std::string(Message(status)), ::testing::HasSubstr(path_ + "/file/below"));
}

}  // namespace
}  // namespace ems::server
