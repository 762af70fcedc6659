// What must hold: a Guarded value is reached by one thread at a time, and a waiter sees what it
// waits for.
#include "common/guarded.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "common/thread_pool.h"

namespace ems {
namespace {

TEST(GuardedTest, ConstructsInPlace) {
  Guarded<std::string> text(std::in_place, 3, 'x');
  auto locked = text.Lock();
  EXPECT_EQ(*locked, "xxx");
}

TEST(GuardedTest, ConcurrentIncrementsAreNotLost) {
  constexpr int kThreads = 4, kEach = 10'000;
  Guarded<int> count;
  {
    std::vector<Thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back("adder", [&] {
        for (int i = 0; i < kEach; ++i) {
          auto locked = count.Lock();
          ++*locked;
        }
      });
    }
  }
  auto locked = count.Lock();
  EXPECT_EQ(*locked, kThreads * kEach);
}

TEST(GuardedTest, WaitReturnsWhenTheConditionHolds) {
  Guarded<bool> ready(std::in_place, false);
  std::condition_variable wakeup;
  Thread setter("setter", [&] {
    {
      auto locked = ready.Lock();
      *locked = true;
    }
    wakeup.notify_all();
  });
  auto locked = ready.Lock();
  locked.Wait(wakeup, [](bool value) { return value; });
  EXPECT_TRUE(*locked);
}

TEST(GuardedTest, WaitForGivesUpAfterItsBound) {
  Guarded<bool> never(std::in_place, false);
  std::condition_variable wakeup;
  auto locked = never.Lock();
  EXPECT_FALSE(
      locked.WaitFor(wakeup, std::chrono::milliseconds(1), [](bool value) { return value; }));
}

}  // namespace
}  // namespace ems
