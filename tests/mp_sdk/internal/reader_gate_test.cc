// What must hold: a grace period ends only when everyone who was inside at its begin has left, and
// newcomers do not hold it up.
#include "mp_sdk/internal/reader_gate.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include "common/thread_pool.h"

namespace ems::internal {
namespace {

// A reader that leaves when the test says so.
struct Inside {
  explicit Inside(ReaderGate* gate) : pass(gate->Enter()) {}
  ReaderGate::Pass pass;
};

TEST(ReaderGateTest, EndsAtOnceWhenNobodyIsInside) {
  ReaderGate gate;
  EXPECT_FALSE(gate.busy());
  const uint64_t grace = gate.Retire();
  EXPECT_TRUE(gate.busy());
  EXPECT_GE(gate.Poll(), grace);
  EXPECT_FALSE(gate.busy());
}

TEST(ReaderGateTest, WaitsForWhoeverIsInside) {
  ReaderGate gate;
  std::optional<Inside> pass;
  pass.emplace(&gate);
  const uint64_t grace = gate.Retire();
  EXPECT_LT(gate.Poll(), grace);
  EXPECT_LT(gate.Poll(), grace);
  pass.reset();
  EXPECT_GE(gate.Poll(), grace);
}

TEST(ReaderGateTest, NewcomersDoNotHoldItUp) {
  ReaderGate gate;
  std::optional<Inside> old;
  old.emplace(&gate);
  const uint64_t grace = gate.Retire();
  EXPECT_LT(gate.Poll(), grace);
  const ReaderGate::Pass newcomer = gate.Enter();
  old.reset();
  EXPECT_GE(gate.Poll(), grace);
}

TEST(ReaderGateTest, WhatIsRetiredDuringAGracePeriodWaitsForTheNext) {
  ReaderGate gate;
  std::optional<Inside> first, second;
  first.emplace(&gate);
  const uint64_t early = gate.Retire();
  EXPECT_LT(gate.Poll(), early);
  second.emplace(&gate);
  const uint64_t late = gate.Retire();
  EXPECT_GT(late, early);
  first.reset();
  const uint64_t ended = gate.Poll();
  EXPECT_GE(ended, early);
  EXPECT_LT(ended, late);
  second.reset();
  EXPECT_GE(gate.Poll(), late);
}

// Readers follow a pointer; the owner frees what it replaces. Under ASan and TSan a reader that is
// let down shows.
TEST(ReaderGateTest, NothingIsFreedUnderAReader) {
  ReaderGate gate;
  auto current = std::make_unique<std::vector<int>>(8, 0);
  std::atomic<std::vector<int>*> shown{current.get()};
  std::atomic<bool> stop{false};
  std::atomic<int> torn{0};
  std::vector<Thread> readers;
  for (int i = 0; i < 3; ++i) {
    readers.emplace_back("reader", [&] {
      while (!stop.load()) {
        const ReaderGate::Pass pass = gate.Enter();
        const std::vector<int>& seen = *shown.load(std::memory_order_seq_cst);
        if (seen.front() != seen.back()) torn++;
      }
    });
  }
  std::vector<std::pair<uint64_t, std::unique_ptr<std::vector<int>>>> retired;
  for (int i = 1; i < 3000; ++i) {
    auto next = std::make_unique<std::vector<int>>(8, i);
    shown.store(next.get(), std::memory_order_seq_cst);
    retired.emplace_back(gate.Retire(), std::exchange(current, std::move(next)));
    const uint64_t ended = gate.Poll();
    std::erase_if(retired, [ended](const auto& one) { return one.first <= ended; });
  }
  stop.store(true);
  readers.clear();
  EXPECT_EQ(torn, 0);
}

}  // namespace
}  // namespace ems::internal
