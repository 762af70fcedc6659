// What must hold: each share runs once and is over when Run returns; helpers take part, the first
// value's shares before the next one's; who has no helper does its work alone.
#include "common/copy_crew.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

namespace ems {
namespace {

constexpr auto kLong = std::chrono::seconds(30);

TEST(CopyCrewTest, EachShareRunsOnceAndIsOverWhenRunReturns) {
  for (const size_t helpers : {size_t{0}, size_t{1}, size_t{3}}) {
    CopyCrew crew("crew", helpers);
    EXPECT_EQ(crew.helpers(), helpers);
    for (const size_t count : {size_t{0}, size_t{1}, size_t{2}, size_t{100}}) {
      std::vector<int> runs(count);  // not atomic: the end of Run comes behind all of them
      crew.Run(count, [&](size_t i) { ++runs[i]; });
      for (const int one : runs) EXPECT_EQ(one, 1);
    }
  }
}

TEST(CopyCrewTest, OnlyLargeValuesAreWorthItAndNoneWithoutHelpers) {
  CopyCrew alone("alone", 0), crew("crew", 1);
  EXPECT_FALSE(alone.Wants(UINT64_MAX));
  EXPECT_FALSE(crew.Wants(CopyCrew::kValueBytesMin - 1));
  EXPECT_TRUE(crew.Wants(CopyCrew::kValueBytesMin));
}

TEST(CopyCrewTest, HelpersTakeShares) {
  CopyCrew crew("crew", 2);
  std::array<StopFlag, 3> begun;
  std::atomic<int> waited{0};
  // None of them ends before all have begun: so there is a thread for each.
  crew.Run(3, [&](size_t i) {
    begun[i].Set();
    for (StopFlag& other : begun) waited += other.WaitFor(kLong) ? 1 : 0;
  });
  EXPECT_EQ(waited, 9);
}

// Callers that stand in a share each, of two; the other one is for a helper.
struct Standing {
  Standing(CopyCrew* crew, std::function<void()> helped)
      : thread("caller", [this, crew, helped = std::move(helped)] {
          const auto caller = std::this_thread::get_id();
          crew->Run(2, [&](size_t) {
            if (std::this_thread::get_id() != caller) return helped();
            stands.Set();
            EXPECT_TRUE(go_on.WaitFor(kLong));
          });
        }) {
    EXPECT_TRUE(stands.WaitFor(kLong));
  }
  ~Standing() { go_on.Set(); }
  StopFlag stands, go_on;
  Thread thread;  // last
};

TEST(CopyCrewTest, WithoutAFreeHelperTheCallerDoesItAll) {
  CopyCrew crew("crew", 1);
  StopFlag helper_stands, helper_goes_on;
  Standing busy(&crew, [&] {
    helper_stands.Set();
    EXPECT_TRUE(helper_goes_on.WaitFor(kLong));
  });
  ASSERT_TRUE(helper_stands.WaitFor(kLong));
  const auto caller = std::this_thread::get_id();
  int mine = 0;
  crew.Run(4, [&](size_t) { mine += std::this_thread::get_id() == caller ? 1 : 0; });
  EXPECT_EQ(mine, 4);
  helper_goes_on.Set();
}

TEST(CopyCrewTest, TheFirstValueIsHelpedFirst) {
  CopyCrew crew("crew", 1);
  StopFlag helper_stands, helper_goes_on;
  std::array<StopFlag, 2> helped;
  std::vector<int> order;  // the helper's
  Standing busy(&crew, [&] {
    helper_stands.Set();
    EXPECT_TRUE(helper_goes_on.WaitFor(kLong));
  });
  ASSERT_TRUE(helper_stands.WaitFor(kLong));
  const auto note = [&](int which) {
    return [&, which] {
      order.push_back(which);
      helped.at(static_cast<size_t>(which)).Set();
    };
  };
  Standing first(&crew, note(0)), second(&crew, note(1));
  helper_goes_on.Set();
  for (StopFlag& one : helped) ASSERT_TRUE(one.WaitFor(kLong));
  EXPECT_EQ(order, (std::vector<int>{0, 1}));
}

TEST(CopyCrewTest, RunReturnsWhenTheSharesOfHelpersAreOver) {
  CopyCrew crew("crew", 1);
  for (int again = 0; again < 20; ++again) {
    const auto caller = std::this_thread::get_id();
    StopFlag helper_stands, caller_is_done;
    std::atomic<bool> is_over{false};
    crew.Run(2, [&](size_t) {
      if (std::this_thread::get_id() == caller) {
        EXPECT_TRUE(helper_stands.WaitFor(kLong));
        caller_is_done.Set();
        return;
      }
      helper_stands.Set();
      EXPECT_TRUE(caller_is_done.WaitFor(kLong));
      for (int i = 0; i < 1000; ++i) std::this_thread::yield();  // the caller could go on meanwhile
      is_over = true;
    });
    ASSERT_TRUE(is_over);
  }
}

TEST(CopyCrewTest, ManyCallersAtTheSameTime) {
  CopyCrew crew("crew", 2);
  constexpr size_t kCallers = 8, kShares = 20;
  std::atomic<size_t> wrong{0};
  std::vector<Thread> callers;
  for (size_t caller = 0; caller < kCallers; ++caller) {
    callers.emplace_back("caller", [&] {
      for (int again = 0; again < 50; ++again) {
        std::array<int, kShares> runs{};
        crew.Run(kShares, [&](size_t i) { ++runs[i]; });
        for (const int one : runs) wrong += one == 1 ? 0 : 1;
      }
    });
  }
  for (Thread& caller : callers) caller.Join();
  EXPECT_EQ(wrong, 0U);
}

}  // namespace
}  // namespace ems
