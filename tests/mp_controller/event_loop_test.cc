#include "mp_controller/event_loop.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

namespace ems::controller {
namespace {

TEST(EventLoopTest, RunsTasksInOrderAndAllBeforeItEnds) {
  std::vector<int> seen;
  {
    EventLoop loop("test-loop", std::chrono::seconds(1), [] {});
    for (int i = 0; i < 100; ++i) ASSERT_TRUE(loop.TryPost([&seen, i] { seen.push_back(i); }));
  }
  ASSERT_EQ(seen.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(seen[static_cast<size_t>(i)], i);
}

TEST(EventLoopTest, TicksWhileTasksKeepComing) {
  std::atomic<int> ticks{0};
  EventLoop loop("test-loop", std::chrono::milliseconds(1), [&] { ++ticks; });
  const Deadline deadline = Deadline::After(std::chrono::seconds(10));
  while (ticks.load() < 5 && !deadline.Passed()) (void)loop.TryPost([] {});
  EXPECT_GE(ticks.load(), 5);
}

TEST(EventLoopTest, FullQueueRefuses) {
  StopFlag go;
  std::atomic<size_t> ran{0};
  size_t taken = 0;
  {
    EventLoop loop("test-loop", std::chrono::seconds(1), [] {});
    StopFlag started;
    ASSERT_TRUE(loop.TryPost([&] {
      started.Set();
      go.WaitFor(std::chrono::seconds(10));
    }));
    ASSERT_TRUE(started.WaitFor(std::chrono::seconds(10)));
    while (taken <= EventLoop::kQueueMax && loop.TryPost([&] { ++ran; })) ++taken;
    go.Set();
  }
  EXPECT_EQ(taken, EventLoop::kQueueMax);
  EXPECT_EQ(ran.load(), taken);
}

}  // namespace
}  // namespace ems::controller
