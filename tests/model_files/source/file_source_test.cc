#include "model_files/source/file_source.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "model_files/source/open_source.h"

namespace ems::model {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class FileSourceTest : public ::testing::Test {
 protected:
  FileSourceTest() {
    std::string pattern = ::testing::TempDir() + "/file_source.XXXXXX";
    folder_ = mkdtemp(pattern.data());
    root_ = folder_ / "root";
    fs::create_directories(root_ / "sub");
    Write(folder_ / "outside", "secret");
  }
  ~FileSourceTest() override { fs::remove_all(folder_); }

  static void Write(const fs::path& path, const std::string& text) {
    std::ofstream(path, std::ios::binary) << text;
  }
  std::unique_ptr<WeightSource> Open(SourceSpec spec = {}) {
    spec.url = root_.string();
    Result<std::unique_ptr<WeightSource>> source = OpenSource(spec);
    EXPECT_TRUE(source.ok()) << ToString(source.status());
    return std::move(*source);
  }
  static Deadline Soon() { return Deadline::After(std::chrono::seconds(10)); }
  static Result<std::string> ReadAll(WeightSource* source, const SourceFile& file) {
    std::string text(file.bytes, '\0');
    EMS_RETURN_IF_ERROR(source->Read(file, 0, std::as_writable_bytes(std::span(text)), Soon()));
    return text;
  }

  fs::path folder_;
  fs::path root_;
};

TEST_F(FileSourceTest, ListsAllFilesSortedAndReadsThem) {
  Write(root_ / "b", "bb");
  Write(root_ / "a", "aaa");
  Write(root_ / "sub" / "c", "");
  const auto source = Open();
  const auto files = source->List(Soon());
  ASSERT_TRUE(files.ok()) << ToString(files.status());
  ASSERT_EQ(files->size(), 3U);
  EXPECT_EQ((*files)[0].path, "a");
  EXPECT_EQ((*files)[0].bytes, 3U);
  EXPECT_EQ((*files)[2].path, "sub/c");
  EXPECT_EQ(*ReadAll(source.get(), (*files)[0]), "aaa");
  EXPECT_EQ(*ReadAll(source.get(), (*files)[2]), "");
  std::string middle(1, '\0');
  EXPECT_TRUE(source->Read((*files)[1], 1, std::as_writable_bytes(std::span(middle)), Soon()).ok());
  EXPECT_EQ(middle, "b");
  EXPECT_EQ(source->counters().bytes_read, 4U);
}

TEST_F(FileSourceTest, TheSpecMayNameTheFiles) {
  Write(root_ / "a", "a");
  Write(root_ / "b", "b");
  EXPECT_EQ(Open({.files = {"b", "b"}})->List(Soon())->size(), 1U);
  EXPECT_EQ(Open({.files = {"none"}})->List(Soon()).status().code(), StatusCode::kNotFound);
}

TEST_F(FileSourceTest, AMissingOrEmptyRootIsNotFound) {
  EXPECT_EQ(Open()->List(Soon()).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(OpenSource({.url = folder_ / "none"}).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(OpenSource({.url = folder_ / "outside"}).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(FileSourceTest, LinksInsideAreFollowedLinksOutsideAreNot) {
  Write(root_ / "sub" / "real", "real");
  fs::create_symlink("sub/real", root_ / "link");
  const auto source = Open();
  const auto files = source->List(Soon());
  ASSERT_TRUE(files.ok()) << ToString(files.status());
  EXPECT_EQ(*ReadAll(source.get(), (*files)[0]), "real");

  for (const fs::path& target :
       {folder_ / "outside", fs::path("../outside"), fs::path("/etc/passwd")}) {
    fs::remove(root_ / "evil");
    fs::create_symlink(target, root_ / "evil");
    const Status status = source->List(Soon()).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << target;
    EXPECT_THAT(std::string(Message(status)), HasSubstr("leads out of")) << target;
    std::string text(6, '\0');
    const SourceFile file{.path = "evil", .bytes = 6, .tag = "1:6"};
    EXPECT_EQ(source->Read(file, 0, std::as_writable_bytes(std::span(text)), Soon()).code(),
              StatusCode::kInvalidArgument);
  }
}

TEST_F(FileSourceTest, AFolderThatBecameALinkOutsideIsNotFollowed) {
  Write(root_ / "sub" / "outside", "inside");
  const auto source = Open();
  const auto files = source->List(Soon());
  ASSERT_TRUE(files.ok());
  fs::remove_all(root_ / "sub");
  fs::create_symlink("..", root_ / "sub");  // sub/outside is now the file outside
  EXPECT_EQ(ReadAll(source.get(), files->front()).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(FileSourceTest, SpecialFilesAndLinksToFoldersAreRefused) {
  ASSERT_EQ(mkfifo((root_ / "fifo").c_str(), 0600), 0);
  const auto source = Open();
  EXPECT_EQ(source->List(Soon()).status().code(), StatusCode::kInvalidArgument);
  std::string text(1, '\0');
  EXPECT_EQ(source
                ->Read({.path = "fifo", .bytes = 1, .tag = "1:1"}, 0,
                       std::as_writable_bytes(std::span(text)), Soon())
                .code(),
            StatusCode::kInvalidArgument);
  fs::remove(root_ / "fifo");
  fs::create_directory_symlink("sub", root_ / "link");
  EXPECT_EQ(source->List(Soon()).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(FileSourceTest, AFileThatChangedFailsItsPrecondition) {
  Write(root_ / "a", "old");
  const auto source = Open();
  const SourceFile file = source->List(Soon())->front();
  struct timespec times[2] = {{.tv_sec = 1, .tv_nsec = 0}, {.tv_sec = 1, .tv_nsec = 1}};
  ASSERT_EQ(utimensat(AT_FDCWD, (root_ / "a").c_str(), times, 0), 0);
  const Status status = ReadAll(source.get(), file).status();
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(Message(status)), HasSubstr("the source changed"));
  fs::remove(root_ / "a");
  EXPECT_EQ(ReadAll(source.get(), file).status().code(), StatusCode::kNotFound);
}

TEST_F(FileSourceTest, AReadThatTheCapHoldsUpBeyondTheDeadlineFailsAtOnce) {
  Write(root_ / "a", std::string(1000, 'x'));
  const auto source = Open({.bytes_per_s_max = 1});
  const SourceFile file = source->List(Soon())->front();
  EXPECT_TRUE(ReadAll(source.get(), file).ok());  // the first turn is free
  EXPECT_EQ(ReadAll(source.get(), file).status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(source->counters().bytes_read, 1000U);
}

TEST_F(FileSourceTest, FoldersNestToALimit) {
  fs::path deep = root_;
  for (int i = 0; i <= FileSource::kDepthMax; ++i) deep /= "d";
  fs::create_directories(deep);
  Write(deep / "a", "a");
  EXPECT_EQ(Open()->List(Soon()).status().code(), StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace ems::model
