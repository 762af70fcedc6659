// What must hold: under its own name a file is whole or as it was; what is not whole is gone after
// a failed load; two loads do not write one file.
#include "ems_model/file_target.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "tests/mp_controller/temp_dir.h"
#include "tests/support/memory_model.h"

namespace ems::model {
namespace {

using testing::ReadFile;
namespace fs = std::filesystem;

class FileTargetTest : public ::testing::Test {
 protected:
  std::string folder() const { return dir_.path() + "/out"; }
  const std::vector<LoadFile> files_ = {{.path = "model/a.bin", .bytes = 8192, .table = nullptr},
                                        {.path = "empty", .bytes = 0, .table = nullptr},
                                        {.path = "b", .bytes = 5, .table = nullptr}};
  static void Fill(LoadTarget* target, uint32_t file, uint64_t offset, uint64_t bytes, char with) {
    std::vector<LoadRange> ranges;
    ASSERT_TRUE(target->Place(file, offset, bytes, &ranges).ok());
    std::memset(ranges[0].into.data(), with, bytes);
    ASSERT_EQ(target->Arrived(file, offset, bytes), OkStatus());
  }
  controller::TempDir dir_;
};

TEST_F(FileTargetTest, AFileHasItsNameOnceItIsWhole) {
  FileTarget target({.folder = folder()});
  ASSERT_EQ(target.Begin(files_), OkStatus());
  EXPECT_TRUE(fs::exists(folder() + "/model/a.bin.part"));
  Fill(&target, 0, 4096, 4096, 'y');
  EXPECT_FALSE(fs::exists(folder() + "/model/a.bin"));
  Fill(&target, 0, 0, 4096, 'x');
  EXPECT_TRUE(ReadFile(folder() + "/model/a.bin") ==
              std::string(4096, 'x') + std::string(4096, 'y'));
  EXPECT_FALSE(fs::exists(folder() + "/model/a.bin.part"));
  Fill(&target, 2, 0, 5, 'b');
  ASSERT_EQ(target.End(OkStatus()), OkStatus());
  EXPECT_EQ(ReadFile(folder() + "/b"), "bbbbb");
  EXPECT_TRUE(fs::exists(folder() + "/empty"));
  EXPECT_FALSE(fs::exists(folder() + "/empty.part"));
}

TEST_F(FileTargetTest, AFailedLoadLeavesWhatWasThere) {
  testing::WriteFiles(folder(), {{"b", "old"}, {"model/a.bin", "older"}});
  {
    FileTarget target({.folder = folder()});
    ASSERT_EQ(target.Begin(files_), OkStatus());
    Fill(&target, 0, 0, 4096, 'x');
    ASSERT_EQ(target.End(Error(StatusCode::kCancelled, "x")), OkStatus());
  }
  EXPECT_EQ(ReadFile(folder() + "/b"), "old");
  EXPECT_EQ(ReadFile(folder() + "/model/a.bin"), "older");
  EXPECT_FALSE(fs::exists(folder() + "/b.part"));
  EXPECT_FALSE(fs::exists(folder() + "/model/a.bin.part"));
  EXPECT_FALSE(fs::exists(folder() + "/empty"));
}

TEST_F(FileTargetTest, ALoadThatJustStopsLeavesNothingHalf) {
  testing::WriteFiles(folder(), {{"b", "old"}});
  {
    FileTarget target({.folder = folder()});
    ASSERT_EQ(target.Begin(files_), OkStatus());
  }
  EXPECT_EQ(ReadFile(folder() + "/b"), "old");
  EXPECT_FALSE(fs::exists(folder() + "/b.part"));
}

TEST_F(FileTargetTest, PartsOfACrashAreWrittenAnew) {
  testing::WriteFiles(folder(), {{"b.part", "a longer rest of a load that was killed"}});
  FileTarget target({.folder = folder()});
  ASSERT_EQ(target.Begin(files_), OkStatus());
  Fill(&target, 2, 0, 5, 'b');
  EXPECT_EQ(ReadFile(folder() + "/b"), "bbbbb");
}

TEST_F(FileTargetTest, TwoLoadsDoNotWriteOneFile) {
  FileTarget first({.folder = folder()});
  ASSERT_EQ(first.Begin(files_), OkStatus());
  {
    FileTarget second({.folder = folder()});
    EXPECT_EQ(second.Begin(files_).code(), StatusCode::kUnavailable);
  }
  EXPECT_TRUE(fs::exists(folder() + "/b.part")) << "the first one's";
  Fill(&first, 2, 0, 5, 'b');
  EXPECT_EQ(ReadFile(folder() + "/b"), "bbbbb");
}

TEST_F(FileTargetTest, OnlyChosenFilesAreMade) {
  FileTarget target({.folder = folder(), .choose = [](std::string_view p) { return p == "b"; }});
  ASSERT_EQ(target.Begin(files_), OkStatus());
  EXPECT_EQ(target.Wants(0, 0, 100), 0U);
  Fill(&target, 2, 0, 5, 'b');
  ASSERT_EQ(target.End(OkStatus()), OkStatus());
  EXPECT_FALSE(fs::exists(folder() + "/model/a.bin"));
  EXPECT_FALSE(fs::exists(folder() + "/empty"));
}

// As a source has them where a download has broken off: one's part was renamed to the other.
TEST_F(FileTargetTest, FilesThatAreCalledAsPartsOfOthersGetTheirOwnBytes) {
  const std::vector<LoadFile> files = {{.path = "w", .bytes = 3, .table = nullptr},
                                       {.path = "w.part", .bytes = 3, .table = nullptr},
                                       {.path = "w.part.part", .bytes = 3, .table = nullptr}};
  for (const std::vector<uint32_t>& order : {std::vector<uint32_t>{0, 1, 2}, {2, 1, 0}}) {
    FileTarget target({.folder = folder()});
    ASSERT_EQ(target.Begin(files), OkStatus());
    for (const uint32_t file : order) Fill(&target, file, 0, 3, static_cast<char>('a' + file));
    ASSERT_EQ(target.End(OkStatus()), OkStatus());
    EXPECT_EQ(ReadFile(folder() + "/w"), "aaa");
    EXPECT_EQ(ReadFile(folder() + "/w.part"), "bbb");
    EXPECT_EQ(ReadFile(folder() + "/w.part.part"), "ccc");
    const fs::directory_iterator left(folder());
    EXPECT_EQ(std::distance(begin(left), end(left)), 3);
  }
}

TEST_F(FileTargetTest, AnEmptyNameIsNotTheRootOfTheMachine) {
  FileTarget target({.folder = ""});
  EXPECT_EQ(target.Begin(files_).code(), StatusCode::kInvalidArgument);
}

TEST_F(FileTargetTest, AFolderThatCannotBeIsAnError) {
  testing::WriteFiles(dir_.path(), {{"out", "a file"}});
  FileTarget target({.folder = folder()});
  EXPECT_FALSE(target.Begin(files_).ok());
  const std::vector<LoadFile> huge = {{.path = "a", .bytes = uint64_t{1} << 50, .table = nullptr}};
  FileTarget other({.folder = dir_.path() + "/other"});
  EXPECT_EQ(other.Begin(huge).code(), StatusCode::kResourceExhausted);
  EXPECT_FALSE(fs::exists(dir_.path() + "/other/a.part"));
}

}  // namespace
}  // namespace ems::model
