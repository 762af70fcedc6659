// What must hold: of several that come, the last one wakes, on whichever thread; what never comes
// keeps no later request from its wake.
#include "mp_server/last_wake.h"

#include <gtest/gtest.h>

namespace ems::server {
namespace {

TEST(LastWakeTest, TheLastOfSeveralWakes) {
  LastWake wake;
  int woken = 0;
  wake.SetWaker([&] { ++woken; });
  const auto first = wake.Next();
  const auto second = wake.Next();
  first();
  EXPECT_EQ(woken, 0);
  second();
  EXPECT_EQ(woken, 1);
}

TEST(LastWakeTest, WhatWasTakenBackIsNotWaitedFor) {
  LastWake wake;
  int woken = 0;
  wake.SetWaker([&] { ++woken; });
  const auto first = wake.Next();
  (void)wake.Next();
  wake.TakeBack();
  first();
  EXPECT_EQ(woken, 1);
}

TEST(LastWakeTest, WhatNeverCameDoesNotHoldUpTheNextRequest) {
  LastWake wake;
  int woken = 0;
  wake.SetWaker([&] { ++woken; });
  const auto late = wake.Next();
  wake.Reset();
  wake.Next()();
  EXPECT_EQ(woken, 1);
  late();
  EXPECT_EQ(woken, 2) << "asking too often is harmless";
}

}  // namespace
}  // namespace ems::server
