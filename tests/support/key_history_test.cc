// What must hold: an acknowledged call rules everything older out, an unanswered one nothing.
#include "tests/support/key_history.h"

#include <gtest/gtest.h>

namespace ems::testing {
namespace {

TEST(KeyHistoryTest, AnAcknowledgedPutRulesOutWhatWasBefore) {
  KeyHistory history;
  EXPECT_TRUE(history.Allows(KeyHistory::kMiss, false));
  history.OnPut(1, true, true);
  history.OnPut(4, true, true);
  EXPECT_TRUE(history.Allows(4, false));
  EXPECT_FALSE(history.Allows(1, false));
  EXPECT_FALSE(history.Allows(KeyHistory::kMiss, false)) << "it was acknowledged as durable";
  EXPECT_EQ(history.oldest(), 4u);
}

TEST(KeyHistoryTest, AnUnansweredPutMayHaveHappenedOrNot) {
  KeyHistory history;
  history.OnPut(1, true, true);
  history.OnPut(2, true, false);
  EXPECT_TRUE(history.Allows(1, false));
  EXPECT_TRUE(history.Allows(2, false));
  EXPECT_EQ(history.oldest(), 1u);
  history.OnPut(3, true, true);
  EXPECT_FALSE(history.Allows(1, false));
  EXPECT_FALSE(history.Allows(2, false)) << "a later Put was acknowledged";
  EXPECT_EQ(history.oldest(), 3u);
}

TEST(KeyHistoryTest, AnAnsweredRemoveRulesOutAllValues) {
  KeyHistory history;
  history.OnPut(5, true, true);
  history.OnRemove(false);
  EXPECT_TRUE(history.Allows(5, false));
  EXPECT_EQ(history.oldest(), 5u);
  history.OnRemove(true);
  EXPECT_TRUE(history.Allows(KeyHistory::kMiss, false));
  EXPECT_FALSE(history.Allows(5, false));
  EXPECT_GT(history.oldest(), 5u);
}

TEST(KeyHistoryTest, WhatIsInDramAloneMayBeGone) {
  KeyHistory history;
  history.OnPut(1, false, true);
  EXPECT_TRUE(history.Allows(KeyHistory::kMiss, false));
  EXPECT_TRUE(history.Allows(1, false));
}

}  // namespace
}  // namespace ems::testing
