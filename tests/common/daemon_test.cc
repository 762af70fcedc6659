#include "common/daemon.h"

#include <absl/synchronization/mutex.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "common/logging.h"

namespace ems {
namespace {

TEST(DaemonTest, SignalsThatStopAreWaitedForAndDoNotEndTheProcess) {
  const StopSignals signals;
  EXPECT_EQ(signals.Wait(std::chrono::milliseconds(1)), 0);
  ::kill(::getpid(), SIGTERM);
  EXPECT_EQ(signals.Wait(std::chrono::seconds(10)), SIGTERM);
  ::kill(::getpid(), SIGINT);
  EXPECT_EQ(signals.Wait(std::chrono::seconds(10)), SIGINT);
  ::kill(::getpid(), SIGPIPE);
  EXPECT_EQ(signals.Wait(std::chrono::milliseconds(1)), 0);
}

// The process may have no more to say.
TEST(DaemonTest, ASignalBringsWhatTheLogHasHeldBack) {
  const StopSignals signals;
  ASSERT_TRUE(log::Init("info").ok());
  ::testing::internal::CaptureStderr();
  for (int i = 0; i < 5; ++i) EMS_LOG(kError, "common", "cannot be reached try={}", i);
  ::kill(::getpid(), SIGTERM);
  EXPECT_EQ(signals.Wait(std::chrono::seconds(10)), SIGTERM);
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(text.find("try=4 (repeated 3 times"), std::string::npos) << text;
}

TEST(DaemonTest, AStopThatTakesTooLongEndsTheProcess) {
  const auto stop = [](Duration most, Duration takes) {
    StopLimit limit("test", most);
    limit.Begin();
    StopFlag never;
    (void)never.WaitFor(takes);
  };
  EXPECT_EXIT(
      {
        stop(std::chrono::milliseconds(20), std::chrono::seconds(60));
        std::exit(0);  // NOLINT(concurrency-mt-unsafe)
      },
      ::testing::ExitedWithCode(1), "test: stopping took more than 0.02 s");
  EXPECT_EXIT(
      {
        stop(std::chrono::seconds(60), std::chrono::milliseconds(1));
        std::exit(0);  // NOLINT(concurrency-mt-unsafe)
      },
      ::testing::ExitedWithCode(0), "");
}

// Where the checks are on, as in Debian's build, they abort at the second order.
TEST(DaemonTest, MutexesMayBeLockedInAnyOrder) {
  EXPECT_EXIT(
      {
        SkipLockOrderChecks();
        absl::Mutex a;
        absl::Mutex b;
        {
          const absl::MutexLock first(&a);
          const absl::MutexLock second(&b);
        }
        {
          const absl::MutexLock first(&b);
          const absl::MutexLock second(&a);
        }
        std::exit(0);  // NOLINT(concurrency-mt-unsafe)
      },
      ::testing::ExitedWithCode(0), "");
}

TEST(DaemonTest, AReadyFileIsThereWholeOrNotAtAll) {
  const auto folder =
      std::filesystem::temp_directory_path() / ("ems_daemon_test." + std::to_string(::getpid()));
  std::filesystem::create_directory(folder);
  const std::string path = folder / "ready";
  ASSERT_EQ(WriteReadyFile(path, R"({"pid": 1})"), OkStatus());
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  EXPECT_EQ(text.str(), "{\"pid\": 1}\n");
  EXPECT_EQ(WriteReadyFile(folder / "no such folder" / "ready", "x").code(),
            StatusCode::kUnavailable);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 1) << "no draft stays";
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace ems
