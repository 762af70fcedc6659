// What must hold: room, rights and direct I/O of a folder are told, and nothing is left in it.
#include "tools/emsctl/doctor/disk_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "common/bytes.h"

namespace ems::emsctl {
namespace {

using ::testing::HasSubstr;

class DiskCheckTest : public ::testing::Test {
 protected:
  DiskCheckTest() { std::filesystem::create_directories(folder_); }
  ~DiskCheckTest() override { std::filesystem::remove_all(folder_); }

  const std::string folder_ = ::testing::TempDir() + fmt::format("ems-disk-{}", ::getpid());
};

TEST_F(DiskCheckTest, TellsRoomAndDirectIoAndLeavesNothing) {
  const Finding disk = CheckDisk({.key = "ssd.path", .folder = folder_, .direct_io = true});
  EXPECT_EQ(disk.check, "disk of ssd.path");
  EXPECT_THAT(disk.found, HasSubstr(folder_ + " on "));
  EXPECT_THAT(disk.found, HasSubstr(" free of "));
  EXPECT_THAT(disk.found, HasSubstr("O_DIRECT"));
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

TEST_F(DiskCheckTest, MoreThanTheDiskHasFails) {
  const Finding disk =
      CheckDisk({.key = "ssd.path", .folder = folder_ + "/ssd", .bytes = uint64_t{1} << 62});
  EXPECT_EQ(disk.level, Level::kFail);
  EXPECT_THAT(disk.mend, HasSubstr("ssd.capacity_bytes"));
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/ssd"));
}

TEST_F(DiskCheckTest, AFolderWhoseParentIsMissingIsSaid) {
  const Finding disk = CheckDisk({.key = "data_dir", .folder = folder_ + "/not/there"});
  EXPECT_GE(disk.level, Level::kWarn);
  EXPECT_THAT(disk.mend, HasSubstr("is it misspelt, or a disk not mounted?"));
}

TEST_F(DiskCheckTest, AFileSystemThatIsMemoryIsSaid) {
  if (!std::filesystem::exists("/dev/shm")) GTEST_SKIP() << "no tmpfs";
  const Finding disk = CheckDisk({.key = "ssd.path", .folder = "/dev/shm"});
  EXPECT_GE(disk.level, Level::kWarn);
  EXPECT_THAT(disk.found, HasSubstr("on tmpfs"));
}

}  // namespace
}  // namespace ems::emsctl
