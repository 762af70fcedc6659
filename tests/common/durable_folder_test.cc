// What must hold: the folder is there, with all above it, and what stands in the way is named.
#include "common/durable_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/support/temp_path.h"

namespace ems {
namespace {

namespace fs = std::filesystem;

TEST(DurableFolderTest, MakesThoseAboveToo) {
  const testing::TempPath root("durable-folder");
  for (const char* name : {"/a/b/c", "/a/b/c", "/a/b/d/"}) {
    EXPECT_EQ(MakeDurableFolders(root.path() + name), OkStatus()) << name;
    EXPECT_TRUE(fs::is_directory(root.path() + name)) << name;
  }
}

TEST(DurableFolderTest, OneAloneIsNotMadeWhereNothingIs) {
  const testing::TempPath root("durable-folder");
  EXPECT_EQ(MakeDurableFolder(root.path() + "/a").code(), StatusCode::kUnavailable);
  EXPECT_FALSE(fs::exists(root.path()));
  EXPECT_EQ(MakeDurableFolder(root.path()), OkStatus());
  EXPECT_TRUE(fs::is_directory(root.path()));
}

TEST(DurableFolderTest, BelowAFileItIsUnavailableAndNamed) {
  const testing::TempPath file("durable-folder");
  std::ofstream(file.path()) << "x";
  const Status status = MakeDurableFolders(file.path() + "/below");
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(std::string(Message(status)), ::testing::HasSubstr(file.path() + "/below"));
}

}  // namespace
}  // namespace ems
