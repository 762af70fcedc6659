#include "bench/control/watch_load.h"

#include <gtest/gtest.h>

#include "mp_controller/controller.h"
#include "tests/mp_controller/controller_harness.h"
#include "tests/mp_controller/temp_dir.h"

namespace ems::bench {
namespace {

class WatchLoadTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(controller_.Start().ok()); }
  const controller::TempDir dir_;
  controller::Controller controller_{controller::FastOptions(dir_.path())};
};

TEST_F(WatchLoadTest, AllWatchersAreCountedAtTheNextView) {
  auto watchers =
      WatchLoad::Start({.controller = controller_.address(), .watchers = 20, .connections = 2});
  ASSERT_TRUE(watchers.ok()) << watchers.status();
  (*watchers)->Expect(2);
  EXPECT_EQ((*watchers)
                ->Collect(Clock::System().Now(), Deadline::After(std::chrono::milliseconds(1)))
                .status()
                .code(),
            StatusCode::kDeadlineExceeded)
      << "there is no such view yet";
  const TimePoint begin = Clock::System().Now();
  const controller::Beater server(controller_.address(), "a", 1);
  const auto arrivals = (*watchers)->Collect(begin, Deadline::After(std::chrono::seconds(20)));
  ASSERT_TRUE(arrivals.ok()) << arrivals.status();
  EXPECT_EQ(arrivals->latency.count(), 20U);
  EXPECT_GT(arrivals->bytes_max, 0U);
}

TEST_F(WatchLoadTest, AStreamThatEndsIsAnError) {
  auto watchers =
      WatchLoad::Start({.controller = controller_.address(), .watchers = 2, .connections = 1});
  ASSERT_TRUE(watchers.ok()) << watchers.status();
  (*watchers)->Expect(1000);
  controller_.Stop();
  EXPECT_EQ((*watchers)
                ->Collect(Clock::System().Now(), Deadline::After(std::chrono::seconds(20)))
                .status()
                .code(),
            StatusCode::kUnavailable);
}

}  // namespace
}  // namespace ems::bench
