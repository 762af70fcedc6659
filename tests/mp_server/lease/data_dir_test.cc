// What must hold: one process a folder, and the highest view survives whatever happens to the file.
#include "mp_server/lease/data_dir.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/support/long_run.h"

namespace ems::server {
namespace {

class DataDirTest : public ::testing::Test {
 protected:
  DataDirTest()
      : path_(fmt::format("{}ems_data_dir_{}_{}", ::testing::TempDir(), ::getpid(),
                          ::testing::UnitTest::GetInstance()->current_test_info()->name())) {}
  ~DataDirTest() override {
    for (const char* end : {"", "_copy", "_moved"}) std::filesystem::remove_all(path_ + end);
  }
  // A life in `path` that ends: what it was told of the folder.
  struct Life {
    uint64_t folder_id = 0, lineage = 0;
    ViewIdentity highest;
  };
  static Life Live(const std::string& path, bool begins_lineage = false,
                   const std::string& machine = "m") {
    Result<DataDir> dir = DataDir::Open(path, machine);
    EXPECT_TRUE(dir.ok()) << dir.status();
    if (!dir.ok()) return {};
    if (begins_lineage) {
      EXPECT_TRUE(dir->BeginLineage().ok());
      EXPECT_TRUE(dir->SetHighestView({{3, 14}, 77}).ok());
    }
    return {dir->folder_id(), dir->lineage(), dir->highest_view()};
  }
  void Copy(const std::string& to) const {
    std::filesystem::copy(path_, to, std::filesystem::copy_options::recursive);
  }

  const std::string path_;
};

TEST_F(DataDirTest, ANewFolderHasNoView) {
  Result<DataDir> dir = DataDir::Open(path_ + "/deep/below");
  ASSERT_TRUE(dir.ok()) << dir.status();
  EXPECT_EQ(dir->highest_view(), ViewIdentity());
}

TEST_F(DataDirTest, TheNumberOfAHandOverIsGivenOutOnce) {
  EXPECT_EQ(DataDir::Open(path_)->TakeHandOver(), 0u);
  ASSERT_EQ(DataDir::Open(path_)->SetHandOver(77), OkStatus());
  Result<DataDir> dir = DataDir::Open(path_);
  ASSERT_TRUE(dir.ok()) << dir.status();
  EXPECT_EQ(dir->TakeHandOver(), 77u);
  EXPECT_EQ(dir->TakeHandOver(), 0u);
  ASSERT_EQ(dir->SetHandOver(78), OkStatus());
  std::ofstream(path_ + "/handover", std::ios::in) << 'x';
  EXPECT_EQ(dir->TakeHandOver(), 0u);  // damaged
  EXPECT_FALSE(std::filesystem::exists(path_ + "/handover"));
}

TEST_F(DataDirTest, TheHighestViewSurvives) {
  {
    Result<DataDir> dir = DataDir::Open(path_);
    ASSERT_TRUE(dir.ok()) << dir.status();
    ASSERT_TRUE(dir->SetHighestView({{3, 14}, 77}).ok());
    ASSERT_TRUE(dir->SetHighestView({{3, 15}, 78}).ok());
    EXPECT_EQ(dir->highest_view(), (ViewIdentity{{3, 15}, 78}));
  }
  Result<DataDir> again = DataDir::Open(path_);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->highest_view(), (ViewIdentity{{3, 15}, 78}));
}

TEST_F(DataDirTest, TheClusterSurvives) {
  {
    Result<DataDir> dir = DataDir::Open(path_);
    ASSERT_TRUE(dir.ok());
    EXPECT_EQ(dir->cluster(), kNoCluster);
    ASSERT_TRUE(dir->SetCluster(ClusterId(0x1234567890abcdef)).ok());
  }
  Result<DataDir> again = DataDir::Open(path_);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->cluster(), ClusterId(0x1234567890abcdef));
}

TEST_F(DataDirTest, ASecondProcessIsToldWhichFolder) {
  Result<DataDir> first = DataDir::Open(path_);
  ASSERT_TRUE(first.ok());
  const Status second = DataDir::Open(path_).status();
  EXPECT_EQ(second.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(Message(second)), ::testing::HasSubstr(path_));
  EXPECT_TRUE(first->SetHighestView({{1, 1}}).ok()) << "the first is undisturbed";
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
    ASSERT_TRUE(dir.ok() && dir->SetHighestView({{3, 14}, 77}).ok());
  }
  std::string bytes;
  {
    std::ifstream file(path_ + "/view", std::ios::binary);
    bytes.assign(std::istreambuf_iterator<char>(file), {});
  }
  ASSERT_EQ(bytes.size(), 32U);
  const auto opened = [this](const std::string& damaged) {
    std::ofstream(path_ + "/view", std::ios::binary) << damaged;
    Result<DataDir> dir = DataDir::Open(path_);
    EXPECT_TRUE(dir.ok()) << dir.status();
    return dir->highest_view();
  };
  const ViewIdentity number_alone{{3, 14}, 0};
  for (size_t at = 0; at < bytes.size(); ++at) {
    std::string damaged = bytes;
    damaged[at] ^= 0x10;
    EXPECT_EQ(opened(damaged), at < 16 ? ViewIdentity() : number_alone) << at;
  }
  EXPECT_EQ(opened(bytes.substr(0, 8)), ViewIdentity());
  EXPECT_EQ(opened(bytes.substr(0, 24)), number_alone);
  EXPECT_EQ(opened(bytes.substr(0, 16)), number_alone) << "as older software wrote it";
  EXPECT_EQ(opened(bytes), (ViewIdentity{{3, 14}, 77}));
  std::ofstream(path_ + "/view", std::ios::binary) << "";
  EXPECT_TRUE(DataDir::Open(path_).ok());
}

// Whichever bit of a folder flips, no number is another one: it is none, and what depends on it is
// given up. Every ninth bit, so that each byte has one; each bit with EMS_DAMAGE_FLIPS.
TEST_F(DataDirTest, AFlippedBitOfAnyFileIsNoOtherNumber) {
  const ClusterId cluster(0x1234567890abcdef);
  const Life clean = Live(path_, true);
  {
    Result<DataDir> dir = DataDir::Open(path_, "m");
    ASSERT_TRUE(dir.ok() && dir->SetCluster(cluster).ok());
  }
  const size_t step = testing::NumberOfVariable("EMS_DAMAGE_FLIPS", 0) > 0 ? 1 : 9;
  for (const std::string name : {"view", "lineage", "folder", "cluster", "place"}) {
    const std::string file = path_ + "/" + name;
    std::ifstream in(file, std::ios::binary);
    const std::string bytes(std::istreambuf_iterator<char>(in), {});
    ASSERT_FALSE(bytes.empty()) << name;
    for (size_t bit = 0; bit < bytes.size() * 8; bit += step) {
      SCOPED_TRACE(fmt::format("bit {} of {}", bit, name));
      std::string damaged = bytes;
      damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
      std::filesystem::copy(path_, path_ + "_copy", std::filesystem::copy_options::recursive);
      std::ofstream(file, std::ios::binary) << damaged;
      const Result<DataDir> dir = DataDir::Open(path_, "m");
      ASSERT_TRUE(dir.ok()) << dir.status();
      const ViewIdentity view = dir->highest_view();
      const bool view_gone = name == "view" && bit < 128;
      EXPECT_EQ(view.version, view_gone ? ViewVersion() : clean.highest.version);
      EXPECT_EQ(view.fingerprint, name == "view" ? 0 : clean.highest.fingerprint);
      EXPECT_EQ(dir->cluster(), name == "cluster" ? kNoCluster : cluster);
      const bool lineage_gone = name == "lineage" || name == "place";
      EXPECT_EQ(dir->lineage(), lineage_gone ? 0 : clean.lineage);
      EXPECT_EQ(dir->folder_id() == clean.folder_id, name != "folder");
      // The lock stays: a folder is known by it.
      for (const char* kept : {"view", "lineage", "folder", "cluster", "place"})
        std::filesystem::copy_file(path_ + "_copy/" + kept, path_ + "/" + kept,
                                   std::filesystem::copy_options::overwrite_existing);
      std::filesystem::remove_all(path_ + "_copy");
    }
  }
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
    ASSERT_TRUE(dir->SetHighestView({{3, 14}, 77}).ok());
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
  EXPECT_EQ(dir->highest_view(), (ViewIdentity{{3, 14}, 77}));
}

TEST_F(DataDirTest, ALineageThatCannotBeWrittenIsOverAllTheSame) {
  Result<DataDir> dir = DataDir::Open(path_);
  ASSERT_TRUE(dir.ok() && dir->BeginLineage().ok());
  std::filesystem::create_directories(path_ + "/lineage.next");  // stands in the way of the write
  EXPECT_TRUE(dir->BeginLineage().ok());
  EXPECT_EQ(dir->lineage(), 0u);
  EXPECT_FALSE(std::filesystem::exists(path_ + "/lineage"));
}

TEST_F(DataDirTest, AFolderKeepsItsIdsOverRestartsInItsPlace) {
  const Life first = Live(path_, true);
  EXPECT_NE(first.folder_id, 0u);
  for (int life = 0; life < 3; ++life) {
    const Life again = Live(path_);
    EXPECT_EQ(again.folder_id, first.folder_id);
    EXPECT_EQ(again.lineage, first.lineage);
  }
  std::filesystem::rename(path_, path_ + "_moved");
  const Life moved = Live(path_ + "_moved");
  std::filesystem::rename(path_ + "_moved", path_);
  EXPECT_EQ(moved.folder_id, first.folder_id) << "there is still one of it";
  EXPECT_EQ(moved.lineage, first.lineage);
}

// Else a process on the copy would pass for the next life of the one that runs on the original.
TEST_F(DataDirTest, ACopiedFolderIsAnotherOneAndWhatIsStoredMayBeOld) {
  const Life original = Live(path_, true);
  Copy(path_ + "_copy");
  const Life copy = Live(path_ + "_copy");
  EXPECT_NE(copy.folder_id, 0u);
  EXPECT_NE(copy.folder_id, original.folder_id);
  EXPECT_EQ(copy.lineage, 0u);
  EXPECT_EQ(copy.highest.version, ViewVersion(3, 14)) << "no older view is installed";
  const Life begun = Live(path_ + "_copy", true);
  EXPECT_EQ(begun.folder_id, copy.folder_id);
  EXPECT_EQ(Live(path_ + "_copy").lineage, begun.lineage) << "it is a folder as any other now";
  std::filesystem::remove_all(path_ + "_copy");
  EXPECT_EQ(Live(path_).lineage, original.lineage) << "nothing happens to the original";
}

TEST_F(DataDirTest, AFolderOnAnotherMachineIsACopy) {
  const Life original = Live(path_, true);
  const Life clone = Live(path_, false, "n");
  EXPECT_NE(clone.folder_id, original.folder_id);
  EXPECT_EQ(clone.lineage, 0u);
  EXPECT_EQ(Live(path_).lineage, 0u) << "and so it is when it comes back";
}

TEST_F(DataDirTest, AFolderThatDoesNotSayWhereItLayCountsAsACopy) {
  (void)Live(path_, true);
  std::filesystem::remove(path_ + "/place");
  EXPECT_EQ(Live(path_).lineage, 0u);
}

TEST_F(DataDirTest, ALineageThatCannotBeEndedIsNotServed) {
  (void)Live(path_, true);
  std::filesystem::remove(path_ + "/lineage");
  std::filesystem::create_directories(path_ + "/lineage");  // unlink fails
  EXPECT_EQ(DataDir::Open(path_, "n").status().code(), StatusCode::kUnavailable);
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
