// What must hold: a daemon is waited for until its ready file is there, says what it printed when
// it ends before, and is gone with its owner, willing or not.
#include "bench/harness/bench_daemon.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cerrno>

#include "tests/bench/harness/fake_program.h"

namespace ems::bench {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr Duration kLong = std::chrono::seconds(10);

TEST(BenchDaemonTest, SaysWhatItsReadyFileSaysAndGoesWithItsOwner) {
  const ProgramFolder folder;
  const std::string program =
      folder.AddDaemon("daemon", R"({"pid": 1, "http": "127.0.0.1:80", "name": "x"})");
  auto daemon = BenchDaemon::Start(program, "one", folder.path(), {"--set", "a=b"});
  ASSERT_TRUE(daemon.ok()) << ToString(daemon.status());
  const Status ready = (*daemon)->WaitReady(kLong);
  ASSERT_TRUE(ready.ok()) << ToString(ready);
  EXPECT_EQ((*daemon)->Field("http"), "127.0.0.1:80");
  EXPECT_EQ((*daemon)->Field("pid"), "") << "not a text";
  EXPECT_EQ((*daemon)->Field("none"), "");
  EXPECT_EQ(folder.Told("daemon"), "--ready-file " + folder.path() + "/one.ready --set a=b\n");
  const pid_t pid = (*daemon)->pid();
  EXPECT_EQ(kill(pid, 0), 0);
  daemon->reset();
  EXPECT_EQ(kill(pid, 0), -1);
  EXPECT_EQ(errno, ESRCH);
}

TEST(BenchDaemonTest, AProgramIsStartedWithItsSettingsAndWaitedFor) {
  const ProgramFolder folder;
  folder.AddDaemon("mp-server", R"({"address": "127.0.0.1:1"})");
  auto daemon =
      BenchDaemon::StartReady(folder.path(), "mp-server", folder.path(), {"a=b", "c=d"}, kLong);
  ASSERT_TRUE(daemon.ok()) << ToString(daemon.status());
  EXPECT_EQ((*daemon)->Field("address"), "127.0.0.1:1");
  EXPECT_THAT(folder.Told("mp-server"), HasSubstr(".ready --set a=b --set c=d\n"));
  EXPECT_EQ(
      BenchDaemon::StartReady(folder.path(), "none", folder.path(), {}, kLong).status().code(),
      StatusCode::kNotFound);
}

TEST(BenchDaemonTest, OneThatEndsFirstSaysWhatItPrinted) {
  const ProgramFolder folder;
  const std::string program = folder.Add("daemon", "echo no such option >&2; exit 2");
  auto daemon = BenchDaemon::Start(program, "one", folder.path(), {});
  ASSERT_TRUE(daemon.ok());
  const Status ready = (*daemon)->WaitReady(kLong);
  EXPECT_EQ(ready.code(), StatusCode::kUnavailable);
  EXPECT_THAT(ToString(ready), HasSubstr("one ended before it was ready: no such option"));
}

TEST(BenchDaemonTest, OneThatIsNeverReadyIsNotWaitedForForEver) {
  const ProgramFolder folder;
  const std::string program = folder.Add("daemon", "exec sleep 1000");
  auto daemon = BenchDaemon::Start(program, "one", folder.path(), {});
  ASSERT_TRUE(daemon.ok());
  EXPECT_EQ((*daemon)->WaitReady(std::chrono::milliseconds(30)).code(),
            StatusCode::kDeadlineExceeded);
}

TEST(BenchDaemonTest, ProgramsAreFoundInTheFolderOrNamed) {
  const ProgramFolder folder;
  folder.AddDaemon("daemon", "{}");
  EXPECT_EQ(FindDaemon(folder.path(), "daemon").value_or(""), folder.path() + "/daemon");
  const auto none = FindDaemon(folder.path(), "sh");
  EXPECT_EQ(none.status().code(), StatusCode::kNotFound) << "another folder's";
  EXPECT_THAT(ToString(none.status()), HasSubstr("build it with"));
  EXPECT_THAT(FindDaemon("", "sh").value_or(""), StartsWith("/"));
}

}  // namespace
}  // namespace ems::bench
