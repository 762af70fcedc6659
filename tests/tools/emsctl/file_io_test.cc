// What must hold: a value is read whole or not at all, and a file is replaced whole or left as it
// was.
#include "tools/emsctl/file_io.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "common/bytes.h"

namespace ems::emsctl {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class FileIoTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "emsctl-XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string Path(const std::string& name) const { return folder_ / name; }
  static std::string Slurp(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  size_t FilesInFolder() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(folder_), {}));
  }
  fs::path folder_;
};

TEST_F(FileIoTest, WritesAndReadsBackWithNulsAndReportsProgress) {
  std::string value(3 * kMiB + 7, 'x');
  value[5] = '\0';
  uint64_t written = 0, read = 0;
  ASSERT_TRUE(WriteValue(Path("v"), value, [&](uint64_t n) { written = n; }).ok());
  EXPECT_EQ(ReadValue(Path("v"), value.size(), [&](uint64_t n) { read = n; }).value(), value);
  EXPECT_EQ(written, value.size());
  EXPECT_EQ(read, value.size());
  EXPECT_EQ(FilesInFolder(), 1U);
}

TEST_F(FileIoTest, EmptyValueIsAFileOfNoBytes) {
  ASSERT_TRUE(WriteValue(Path("empty"), "", {}).ok());
  EXPECT_EQ(ReadValue(Path("empty"), 10, {}).value(), "");
}

TEST_F(FileIoTest, ReplacesAFileWhole) {
  ASSERT_TRUE(WriteValue(Path("v"), "old and longer", {}).ok());
  ASSERT_TRUE(WriteValue(Path("v"), "new", {}).ok());
  EXPECT_EQ(Slurp(Path("v")), "new");
}

TEST_F(FileIoTest, FailedWriteLeavesNothingBehind) {
  fs::create_directory(Path("taken"));
  const Status status = WriteValue(Path("taken"), "value", {});
  EXPECT_EQ(status.code(), StatusCode::kInternal);
  EXPECT_THAT(std::string(Message(status)), HasSubstr("taken"));
  EXPECT_EQ(FilesInFolder(), 1U);
  EXPECT_FALSE(WriteValue(Path("no/such/folder"), "value", {}).ok());
}

TEST_F(FileIoTest, TooLargeFileIsRefusedNamingTheLimit) {
  ASSERT_TRUE(WriteValue(Path("v"), std::string(2048, 'x'), {}).ok());
  EXPECT_TRUE(ReadValue(Path("v"), 2048, {}).ok());
  const Status status = ReadValue(Path("v"), 1024, {}).status();
  EXPECT_EQ(status.code(), StatusCode::kOutOfRange);
  EXPECT_THAT(std::string(Message(status)), HasSubstr("larger than 1 KiB"));
}

TEST_F(FileIoTest, EndlessDeviceStopsAtTheLimit) {
  EXPECT_EQ(ReadValue("/dev/zero", kMiB, {}).status().code(), StatusCode::kOutOfRange);
}

TEST_F(FileIoTest, MissingFileAndFolderAreNamed) {
  EXPECT_EQ(ReadValue(Path("absent"), 10, {}).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(ReadValue(folder_, 10, {}).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace ems::emsctl
