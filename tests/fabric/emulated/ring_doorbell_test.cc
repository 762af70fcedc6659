// What must hold: a ring wakes waiting threads, from another thread as from a sleep; no news are
// lost; a wait ends by its deadline, and when the peer goes.
#include "fabric/emulated/ring_doorbell.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>

#include <memory>
#include <vector>

#include "common/thread_pool.h"
#include "fabric/emulated/ring_pair.h"

namespace ems::fabric::internal {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

struct Rig {
  std::atomic<uint64_t> count{0};
  std::atomic<uint32_t> asleep{0};
  Fd event{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  SocketPair sockets = *MakeSocketPair();
  RingDoorbell::Wire wire{&count, &asleep, event.get()};
};

Deadline Long() { return Deadline::After(seconds(60)); }

TEST(RingDoorbellTest, WhatHoldsAlreadyIsNotWaitedFor) {
  Rig rig;
  RingDoorbell bell(rig.wire, rig.sockets.one.get(), Duration::zero());
  EXPECT_TRUE(bell.Wait(Deadline::After(Duration::zero()), [] { return true; }).ok());
}

TEST(RingDoorbellTest, NoRingIsLost) {
  for (const Duration spin : {Duration(0), Duration(std::chrono::microseconds(50))}) {
    Rig there, back;
    RingDoorbell ping(there.wire, there.sockets.one.get(), spin);
    RingDoorbell pong(back.wire, back.sockets.one.get(), spin);
    constexpr uint64_t kRounds = 3000;
    Thread echo("echo", [&] {
      for (uint64_t i = 1; i <= kRounds; ++i) {
        EXPECT_TRUE(ping.Wait(Long(), [&] { return there.count >= i; }).ok());
        RingDoorbell::Ring(back.wire);
      }
    });
    for (uint64_t i = 1; i <= kRounds; ++i) {
      RingDoorbell::Ring(there.wire);
      ASSERT_TRUE(pong.Wait(Long(), [&] { return back.count >= i; }).ok());
    }
  }
}

TEST(RingDoorbellTest, AllThreadsOfASideHearARing) {
  Rig rig;
  RingDoorbell bell(rig.wire, rig.sockets.one.get(), Duration::zero());
  std::atomic<int> heard{0};
  std::vector<Thread> threads;
  for (uint64_t t = 1; t <= 4; ++t) {
    threads.emplace_back("wait", [&, t] {
      if (bell.Wait(Long(), [&] { return rig.count >= t * 100; }).ok()) ++heard;
    });
  }
  for (int i = 0; i < 400; ++i) RingDoorbell::Ring(rig.wire);
  threads.clear();
  EXPECT_EQ(heard, 4);
}

TEST(RingDoorbellTest, NewsOfItsOwnSideWakeToo) {
  Rig rig;
  RingDoorbell bell(rig.wire, rig.sockets.one.get(), Duration::zero());
  std::atomic<int> done{0};
  constexpr int kRounds = 500;
  Thread nudger("nudge", [&] {
    for (int i = 0; i < kRounds; ++i) {
      ++done;
      bell.Nudge();
    }
  });
  for (int i = 1; i <= kRounds; ++i)
    ASSERT_TRUE(bell.Wait(Long(), [&] { return done >= i; }).ok()) << i;
}

TEST(RingDoorbellTest, AWaitEndsByItsDeadline) {
  Rig rig;
  RingDoorbell bell(rig.wire, rig.sockets.one.get(), std::chrono::microseconds(10));
  int polls = 0;
  const auto never = [&] { return ++polls == 0; };
  EXPECT_EQ(bell.Wait(Deadline::After(milliseconds(5)), never).code(),
            StatusCode::kDeadlineExceeded);
  EXPECT_GE(polls, 2) << "once at the end, too";
  EXPECT_FALSE(bell.peer_is_gone());
}

TEST(RingDoorbellTest, APeerThatGoesEndsTheWaitsOfAllThreads) {
  Rig rig;
  RingDoorbell bell(rig.wire, rig.sockets.one.get(), Duration::zero());
  std::atomic<int> gone{0};
  std::vector<Thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back("wait", [&] {
      if (bell.Wait(Long(), [] { return false; }).code() == StatusCode::kUnavailable) ++gone;
    });
  }
  rig.sockets.other.Close();
  threads.clear();
  EXPECT_EQ(gone, 3);
  EXPECT_TRUE(bell.peer_is_gone());
}

}  // namespace
}  // namespace ems::fabric::internal
