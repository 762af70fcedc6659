// What must hold: events come out in order, wake who waits, and after it is closed none comes in.
#include "pdc/router/router_inbox.h"

#include <gtest/gtest.h>

#include <vector>

#include "common/thread_pool.h"

namespace ems::pdc {
namespace {

TimePoint Later() { return Clock::System().Now() + std::chrono::seconds(10); }

TEST(RouterInboxTest, GivesAllInOrder) {
  RouterInbox inbox;
  EXPECT_TRUE(inbox.Push(RequestCancelled{1}));
  EXPECT_TRUE(inbox.Push(AttemptTokens{2, {'a'}}));
  std::vector<RouterEvent> events;
  EXPECT_TRUE(inbox.Take(Later(), &events));
  ASSERT_EQ(events.size(), 2U);
  EXPECT_EQ(std::get<RequestCancelled>(events[0]).sequence, 1U);
  EXPECT_EQ(std::get<AttemptTokens>(events[1]).attempt, 2U);
  EXPECT_TRUE(inbox.Take(Clock::System().Now(), &events));
  EXPECT_TRUE(events.empty());
}

TEST(RouterInboxTest, WhatWasThereWhenItClosedIsGivenAndNothingAfter) {
  RouterInbox inbox;
  EXPECT_TRUE(inbox.Push(RequestCancelled{1}));
  inbox.Close();
  EXPECT_FALSE(inbox.Push(RequestCancelled{2}));
  std::vector<RouterEvent> events;
  EXPECT_FALSE(inbox.Take(Later(), &events));
  EXPECT_EQ(events.size(), 1U);
}

TEST(RouterInboxTest, WakesWhoWaits) {
  constexpr uint64_t kEvents = 1000;
  RouterInbox inbox;
  uint64_t next = 0;
  Thread taker("taker", [&inbox, &next] {
    std::vector<RouterEvent> events;
    bool open = true;
    while (open) {
      open = inbox.Take(Clock::System().Now() + std::chrono::minutes(1), &events);
      for (const RouterEvent& event : events)
        if (std::get<RequestCancelled>(event).sequence == next) ++next;
    }
  });
  for (uint64_t i = 0; i < kEvents; ++i) EXPECT_TRUE(inbox.Push(RequestCancelled{i}));
  inbox.Close();
  taker.Join();
  EXPECT_EQ(next, kEvents);
}

}  // namespace
}  // namespace ems::pdc
