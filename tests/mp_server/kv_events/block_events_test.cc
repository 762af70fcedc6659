#include "mp_server/kv_events/block_events.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "common/thread_pool.h"

namespace ems::kv_events {
namespace {

BlockEvent Event(uint64_t number, bool stored = true) {
  return {Hash128{number, 7}, Medium::kDram, stored};
}

TEST(BlockEventsTest, ComeOutInTheOrderInWhichTheyWentIn) {
  BlockEvents events(8);
  std::vector<BlockEvent> out;
  EXPECT_EQ(events.Drain(8, &out), 0u);
  for (uint64_t i = 0; i < 5; ++i) events.Push(Event(i));
  EXPECT_EQ(events.Drain(3, &out), 3u);
  EXPECT_EQ(events.Drain(3, &out), 2u);
  EXPECT_THAT(out, ::testing::ElementsAre(Event(0), Event(1), Event(2), Event(3), Event(4)));
  EXPECT_EQ(events.lost(), 0u);
}

TEST(BlockEventsTest, WhatFindsItFullIsLostAndCountedAndLaterOnesGoOn) {
  BlockEvents events(5);
  ASSERT_EQ(events.capacity(), 8u);
  for (uint64_t i = 0; i < 11; ++i) events.Push(Event(i));
  EXPECT_EQ(events.lost(), 3u);
  std::vector<BlockEvent> out;
  EXPECT_EQ(events.Drain(100, &out), 8u);
  EXPECT_EQ(out.back(), Event(7));
  events.Push(Event(20));
  EXPECT_EQ(events.Drain(100, &out), 1u);
  EXPECT_EQ(out.back(), Event(20));
  EXPECT_EQ(events.lost(), 3u);
  events.Lose();
  EXPECT_EQ(events.lost(), 4u);
}

// Each thread's events stay in their order and none comes twice, also where the ring turns round
// and is full now and then: what is missing is what was counted as lost.
TEST(BlockEventsTest, ManyThreadsPushWhileOneDrains) {
  constexpr uint64_t kThreads = 4, kEach = 20'000;
  BlockEvents events(64);
  std::atomic<uint64_t> running{kThreads};
  std::vector<Thread> threads;
  for (uint64_t t = 0; t < kThreads; ++t) {
    threads.emplace_back("push-" + std::to_string(t), [&, t] {
      for (uint64_t i = 0; i < kEach; ++i) events.Push({Hash128{i, t}, Medium::kSsd, i % 2 == 0});
      running.fetch_sub(1);
    });
  }
  std::vector<BlockEvent> out;
  while (running.load() > 0) events.Drain(16, &out);
  threads.clear();
  while (events.Drain(16, &out) > 0) {
  }
  EXPECT_EQ(out.size() + events.lost(), kThreads * kEach);
  std::map<uint64_t, uint64_t> next;
  for (const BlockEvent& event : out) {
    ASSERT_GE(event.hash.lo, next[event.hash.hi]);
    ASSERT_EQ(event.stored, event.hash.lo % 2 == 0);
    next[event.hash.hi] = event.hash.lo + 1;
  }
}

}  // namespace
}  // namespace ems::kv_events
