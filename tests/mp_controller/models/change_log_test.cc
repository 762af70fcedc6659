// What must hold: who had a list and takes over what has changed since has the list of now; who is
// too far behind is told so.
#include "mp_controller/models/change_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ems::controller {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(ChangeLogTest, TellsWhatHasChangedSinceOnceEach) {
  ChangeLog log;
  log.Begin(100);
  log.Put(1, 11);
  log.Put(2, 22);
  const uint64_t since = log.number();
  EXPECT_THAT(log.After(since).changed, IsEmpty());
  log.Put(2, 23);
  log.Put(2, 24);
  log.Put(3, 33);
  log.Remove(1);
  log.Put(4, 44);
  log.Remove(4);
  const ChangeLog::Changes changes = log.After(since);
  EXPECT_FALSE(changes.whole);
  EXPECT_THAT(changes.changed, ElementsAre(2, 3));
  EXPECT_THAT(changes.removed, ElementsAre(1, 4));
  EXPECT_EQ(log.rows(), 2U);
  EXPECT_EQ(log.checksum(), 24U ^ 33U);
  EXPECT_THAT(log.After(log.number() - 1).removed, ElementsAre(4));
  const uint64_t number = log.number();
  log.Remove(77);  // was never there
  EXPECT_EQ(log.number(), number);
}

TEST(ChangeLogTest, ListsThatItDoesNotKnowAreAnsweredWhole) {
  ChangeLog log;
  log.Begin(100);
  log.Put(1, 11);
  EXPECT_TRUE(log.After(0).whole) << "who has none";
  EXPECT_TRUE(log.After(99).whole) << "of an earlier life";
  EXPECT_FALSE(log.After(100).whole);
  EXPECT_TRUE(log.After(log.number() + 1).whole) << "of a later one";
}

TEST(ChangeLogTest, KeepsSoManyChangesAndNoMore) {
  ChangeLog log;
  log.Begin(100);
  log.Put(1, 11);
  const uint64_t since = log.number();
  for (uint32_t i = 0; i < ChangeLog::kKept; ++i) log.Put(2, i);
  EXPECT_FALSE(log.After(since).whole);
  EXPECT_TRUE(log.After(since - 1).whole);
  log.Put(2, 0);
  EXPECT_TRUE(log.After(since).whole) << "one change is not known any more";
  EXPECT_THAT(log.After(since + 1).changed, ElementsAre(2));
}

}  // namespace
}  // namespace ems::controller
