// What must hold: of two threads that each store a word, fence, and load the other's, one at least
// finds what the other has stored.
#include "common/full_fence.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "common/bytes.h"
#include "common/clock.h"
#include "common/thread_pool.h"

namespace ems {
namespace {

struct alignas(64) Line {
  std::atomic<uint64_t> word{0};
};

// One of the two threads.
struct Side {
  Line met;   // the round that it has begun, or ended
  Line word;  // what it stores
  Line saw;   // the last round in which it found the other's
  std::vector<Line> far = std::vector<Line>(32 * kMiB / sizeof(Line));
};

// On the CPU number `which` of those that this process may use, if there are so many.
void StayOn(size_t which) {
  cpu_set_t may;
  if (::sched_getaffinity(0, sizeof(may), &may) != 0) return;
  for (size_t cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &may) || which-- > 0) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    (void)::sched_setaffinity(0, sizeof(one), &one);
    return;
  }
}

// Without the fence a store of x86 stays in its CPU's store buffer past a later load: here for
// long, because an earlier one waits there for a line that is in no cache near by.
TEST(FullFenceTest, OneOfTwoSeesTheOther) {
  constexpr uint64_t kRounds = 200'000;
  constexpr uint64_t kFarStep = 4099;
  std::array<Side, 2> sides;
  std::atomic<bool> over{false};  // set by the first one before both meet: they end in one round
  uint64_t missed = 0, rounds = 0;
  const Deadline deadline = Deadline::After(std::chrono::milliseconds(400));
  const auto meet = [&sides](size_t mine, uint64_t moment) {
    sides[mine].met.word.store(moment, std::memory_order_release);
    const std::atomic<uint64_t>& other = sides[1 - mine].met.word;
    for (int spins = 0; other.load(std::memory_order_acquire) < moment; ++spins) {
      if (spins > 1000) std::this_thread::yield();
    }
  };
  const auto play = [&](size_t mine) {
    StayOn(mine);
    Side& own = sides[mine];
    const std::atomic<uint64_t>& others = sides[1 - mine].word.word;
    for (uint64_t round = 1; round <= kRounds; ++round) {
      std::atomic<uint64_t>& far = own.far[round * kFarStep % own.far.size()].word;
      if (mine == 0 && deadline.Passed()) over = true;
      meet(mine, 2 * round);
      if (over) return;
      far.store(round, std::memory_order_relaxed);
      own.word.word.store(round, std::memory_order_relaxed);
      FullFence();
      if (others.load(std::memory_order_relaxed) == round) own.saw.word = round;
      meet(mine, 2 * round + 1);
      if (mine != 0) continue;
      ++rounds;
      missed += sides[0].saw.word == round || sides[1].saw.word == round ? 0 : 1;
    }
  };
  {
    Thread one("one", [&] { play(0); });
    Thread two("two", [&] { play(1); });
  }
  EXPECT_EQ(missed, 0U) << missed << " of " << rounds << " rounds";
}

}  // namespace
}  // namespace ems
