// What must hold: a program is found or not, a child's output and exit code arrive.
#include "bench/harness/child_process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <utility>

#include "tests/support/temp_path.h"

namespace ems::bench {
namespace {

TEST(ChildProcessTest, FindsProgramsThatAreThere) {
  EXPECT_EQ(FindProgram("no-such-program-anywhere"), "");
  EXPECT_TRUE(FindProgram("sh").ends_with("/sh"));
}

TEST(ChildProcessTest, OutputGoesToTheLogAndTheExitCodeIsTold) {
  const ::ems::testing::TempPath file("child.log");
  const std::string& log = file.path();
  const auto pid = Spawn({FindProgram("sh"), "-c", "echo out; echo err >&2; exit 3"}, log);
  ASSERT_TRUE(pid.ok()) << ToString(pid.status());
  EXPECT_EQ(Reap(*pid), 3);
  EXPECT_EQ(ReadFile(log), "out\nerr\n");
  EXPECT_EQ(LogEnd(log), "out\nerr\n");
  EXPECT_EQ(LogEnd("/no/such/log"), "it printed nothing");
}

TEST(ChildProcessTest, ADescriptorIsInheritedUnderOneNumber) {
  int pipe_ends[2];
  ASSERT_EQ(::pipe2(pipe_ends, O_CLOEXEC), 0);
  const auto pid = Spawn({FindProgram("sh"), "-c", "echo inherited >&3"}, "", pipe_ends[1]);
  ::close(pipe_ends[1]);
  ASSERT_TRUE(pid.ok()) << ToString(pid.status());
  EXPECT_EQ(Reap(*pid), 0);
  char text[32] = {};
  EXPECT_EQ(::read(pipe_ends[0], text, sizeof(text)), 10);
  EXPECT_STREQ(text, "inherited\n");
  ::close(pipe_ends[0]);
}

TEST(ChildProcessTest, IsGoneWithItsOwner) {
  const auto pid = Spawn({FindProgram("cat"), "/dev/zero"}, "/dev/null");
  ASSERT_TRUE(pid.ok());
  {
    ChildProcess first(*pid);
    EXPECT_FALSE(first.HasEnded());
    const ChildProcess second = std::move(first);
    EXPECT_TRUE(first.HasEnded()) << "it has no child any more";
    EXPECT_EQ(second.pid(), *pid);
    EXPECT_EQ(::kill(*pid, 0), 0);
  }
  EXPECT_EQ(::kill(*pid, 0), -1);
  EXPECT_EQ(errno, ESRCH);
}

TEST(ChildProcessTest, OneThatIsKilledAndOneThatCannotBeRunSaySo) {
  const ::ems::testing::TempPath file("child.log");
  const std::string& log = file.path();
  const auto killed = Spawn({FindProgram("cat"), "/dev/zero"}, "/dev/null");
  ASSERT_TRUE(killed.ok());
  ASSERT_EQ(::kill(*killed, SIGKILL), 0);
  EXPECT_EQ(Reap(*killed), 128 + SIGKILL);
  const auto missing = Spawn({"/no/such/program"}, log);
  ASSERT_TRUE(missing.ok());
  EXPECT_EQ(Reap(*missing), 127);
}

}  // namespace
}  // namespace ems::bench
