// What must hold: every accepted task runs exactly once, the queue is bounded, and stopping runs
// what was accepted.
#include "common/thread_pool.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>

#include <array>
#include <atomic>
#include <string>

namespace ems {
namespace {

TEST(ThreadPoolTest, RunsEveryAcceptedTaskBeforeItGoes) {
  std::atomic<int> runs{0};
  int accepted = 0;
  {
    ThreadPool pool("pool", 3, 1000);
    for (int i = 0; i < 1000; ++i) accepted += pool.TrySubmit([&] { ++runs; }) ? 1 : 0;
  }
  EXPECT_EQ(runs.load(), accepted);
  EXPECT_GT(accepted, 0);
}

TEST(ThreadPoolTest, WhoHandsWorkOverKeepsItsCoreWhereThatIsWanted) {
  const auto policy_of = [](OnWake on_wake) {
    std::atomic<int> policy{-1};
    {
      ThreadPool pool("pool", 1, 1, on_wake);
      EXPECT_TRUE(pool.TrySubmit([&] { policy = ::sched_getscheduler(0); }));
    }
    return policy.load();
  };
  EXPECT_EQ(policy_of(OnWake::kWait), SCHED_BATCH);
  EXPECT_EQ(policy_of(OnWake::kPreempt), SCHED_OTHER);
}

TEST(ThreadPoolTest, RefusesWhenTheQueueIsFullAndLeavesTheTaskUsable) {
  StopFlag started, release;
  int ran_here = 0;
  std::function<void()> third = [&] { ++ran_here; };
  {
    ThreadPool pool("pool", 1, 1);
    ASSERT_TRUE(pool.TrySubmit([&] {
      started.Set();
      release.WaitFor(std::chrono::seconds(30));
    }));
    ASSERT_TRUE(started.WaitFor(std::chrono::seconds(30)));
    ASSERT_TRUE(pool.TrySubmit([] {}));
    EXPECT_FALSE(pool.TrySubmit(std::move(third)));
    release.Set();
  }
  ASSERT_TRUE(third != nullptr);
  third();
  EXPECT_EQ(ran_here, 1);
}

TEST(ThreadPoolTest, ThreadsCarryTheirName) {
  std::string name;
  {
    Thread thread("ems-a-very-long-name", [&] {
      std::array<char, 32> text{};
      pthread_getname_np(pthread_self(), text.data(), text.size());
      name = text.data();
    });
  }
  EXPECT_EQ(name, "ems-a-very-long");
}

TEST(StopFlagTest, WaitEndsWhenSetAndOtherwiseAfterItsTimeout) {
  StopFlag flag;
  EXPECT_FALSE(flag.IsSet());
  EXPECT_FALSE(flag.WaitFor(std::chrono::milliseconds(1)));
  Thread setter("setter", [&] { flag.Set(); });
  EXPECT_TRUE(flag.WaitFor(std::chrono::seconds(30)));
  EXPECT_TRUE(flag.IsSet());
}

}  // namespace
}  // namespace ems
