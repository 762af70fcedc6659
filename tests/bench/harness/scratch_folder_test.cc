// What must hold: the folder is there and empty, its owner's alone, and gone with all that is in
// it.
#include "bench/harness/scratch_folder.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace ems::bench {
namespace {

TEST(ScratchFolderTest, IsGoneWithItsOwnerAndAllThatIsInIt) {
  auto outer = ScratchFolder::Make();
  ASSERT_TRUE(outer.ok()) << ToString(outer.status());
  const auto inner = ScratchFolder::Make((*outer)->path());
  ASSERT_TRUE(inner.ok()) << ToString(inner.status());
  const std::filesystem::path path = (*inner)->path();
  EXPECT_EQ(std::filesystem::status(path).permissions(), std::filesystem::perms::owner_all);
  std::ofstream(path / "file") << "text";
  outer->reset();
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(ScratchFolderTest, ParentThatIsNoneIsNamed) {
  const auto folder = ScratchFolder::Make("/no/such/folder");
  EXPECT_EQ(folder.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(ToString(folder.status()).find("/no/such/folder"), std::string::npos);
}

}  // namespace
}  // namespace ems::bench
