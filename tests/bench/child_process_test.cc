// What must hold: a program is found or not, a child's output and exit code arrive.
#include "bench/child_process.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <string>

#include "tests/support/temp_path.h"

namespace ems::bench {
namespace {

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

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
