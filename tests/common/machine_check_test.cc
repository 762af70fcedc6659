// What must hold: what the machine has not is said with key and value, and nothing is made.
#include "common/machine_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "common/bytes.h"

namespace ems {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class MachineCheckTest : public ::testing::Test {
 protected:
  MachineCheckTest() { std::filesystem::create_directories(folder_); }
  ~MachineCheckTest() override { std::filesystem::remove_all(folder_); }

  const std::string folder_ = ::testing::TempDir() + fmt::format("ems-machine-{}", ::getpid());
};

TEST_F(MachineCheckTest, AFolderIsThereOrCanBeMadeInOne) {
  EXPECT_EQ(CheckFolder("k", folder_), OkStatus());
  EXPECT_EQ(CheckFolder("k", folder_ + "/"), OkStatus());
  EXPECT_EQ(CheckFolder("k", folder_ + "/new"), OkStatus());
  EXPECT_EQ(CheckFolder("k", folder_ + "/new/"), OkStatus());
  EXPECT_EQ(CheckFolder("k", "relative"), OkStatus());
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/new"));
}

TEST_F(MachineCheckTest, AFolderWhoseParentIsMissingIsSaid) {
  const Status status = CheckFolder("ssd.path", folder_ + "/nvmee/ems");
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_THAT(
      std::string(Message(status)),
      AllOf(HasSubstr("\"ssd.path\" is " + folder_ + "/nvmee/ems"),
            HasSubstr("only " + folder_ + " exists"), HasSubstr("make " + folder_ + "/nvmee")));
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/nvmee"));
}

TEST_F(MachineCheckTest, AFileIsNoFolder) {
  std::ofstream(folder_ + "/file") << "x";
  for (const char* below : {"/file", "/file/data", "/file/more/data"}) {
    const Status status = CheckFolder("data_dir", folder_ + below);
    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition) << below;
    EXPECT_THAT(std::string(Message(status)), HasSubstr(folder_ + "/file is no folder"));
  }
}

TEST_F(MachineCheckTest, AFolderOfSomebodyElseIsSaid) {
  // In a process of its own, which is nobody there: root may write everywhere.
  EXPECT_EXIT(
      {
        constexpr uid_t kNobody = 65534;
        if (::geteuid() == 0 && ::setuid(kNobody) != 0) ::_exit(2);
        const Status status = CheckFolder("data_dir", "/etc/ems-never");
        const bool said = Message(status).find("may not write to /etc") != std::string_view::npos;
        ::_exit(status.code() == StatusCode::kFailedPrecondition && said ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_F(MachineCheckTest, SizesAreComparedWithAllThatTheMachineHas) {
  EXPECT_EQ(CheckMemoryBytes("dram.bytes", kMiB), OkStatus());
  const Status memory = CheckMemoryBytes("dram.bytes", uint64_t{1} << 60);
  EXPECT_EQ(memory.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(Message(memory)),
              AllOf(HasSubstr("\"dram.bytes\" is "), HasSubstr("of memory; write less")));

  EXPECT_EQ(CheckDiskBytes("ssd.capacity_bytes", kMiB, folder_ + "/not/yet"), OkStatus());
  const Status disk = CheckDiskBytes("ssd.capacity_bytes", uint64_t{1} << 62, folder_ + "/not/yet");
  EXPECT_EQ(disk.code(), StatusCode::kOutOfRange);
  EXPECT_THAT(std::string(Message(disk)), HasSubstr("the disk of " + folder_ + " has "));
}

TEST_F(MachineCheckTest, AStartGoesOnButForWhatNeverPasses) {
  const Status may_pass = CheckFolder("k", folder_ + "/a/b");
  const Status never = CheckMemoryBytes("k", uint64_t{1} << 60);
  const auto problems = Problems({OkStatus(), may_pass, never, OkStatus()});
  EXPECT_EQ(problems, (std::vector<Status>{may_pass, never}));
  EXPECT_EQ(LogWarnings("test", problems), never);
  EXPECT_EQ(LogWarnings("test", {may_pass}), OkStatus());
  ::testing::internal::CaptureStderr();
  PrintWarnings("mp-server", {may_pass});
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            fmt::format("mp-server: warning: on this machine {}\n", Message(may_pass)));
}

TEST_F(MachineCheckTest, AContainersLimitCountsWhereItIsLessThanTheMachineHas) {
  const uint64_t all = MachineMemoryBytes(folder_ + "/nothing");
  EXPECT_GT(all, 0U);
  std::ofstream(folder_ + "/limit") << 64 * kMiB << '\n';
  EXPECT_EQ(MachineMemoryBytes(folder_ + "/limit"), 64 * kMiB);
  std::ofstream(folder_ + "/none") << "max\n";
  EXPECT_EQ(MachineMemoryBytes(folder_ + "/none"), all);
}

}  // namespace
}  // namespace ems
