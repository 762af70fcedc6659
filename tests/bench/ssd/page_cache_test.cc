// What must hold: what was written is still there afterwards, and how it was dropped is said.
#include "bench/ssd/page_cache.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/mp_server/ssd/ssd_fixture.h"

namespace ems::bench {
namespace {

TEST(PageCacheTest, FilesKeepWhatWasWritten) {
  const ::ems::testing::TempFolder folder;
  std::filesystem::create_directory(folder.path() + "/inner");
  const std::string path = folder.path() + "/inner/file";
  std::ofstream(path) << "what was written";
  EXPECT_EQ(DropPageCache(folder.path(), false), "that of its files");
  std::ifstream file(path);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), "what was written");
}

TEST(PageCacheTest, AFolderThatIsNotThereIsNoError) {
  EXPECT_NE(DropPageCache("/no/such/folder", false), "");
}

}  // namespace
}  // namespace ems::bench
