#include "mp_server/store/evictor.h"

#include <gtest/gtest.h>

#include "tests/mp_server/store/memory_fixture.h"

namespace ems::server {
namespace {

TEST(EvictorTest, APokeRunsARoundLongBeforeTheInterval) {
  SegmentPool pool(SmallPool(4 * kMiB));
  ObjectStore store({.pool = &pool});
  Evictor evictor(&store, std::chrono::hours(1));
  EXPECT_EQ(evictor.rounds(), 0u);
  evictor.Poke();
  const Deadline deadline = Soon();
  while (evictor.rounds() == 0 && !deadline.Passed()) std::this_thread::yield();
  EXPECT_EQ(evictor.rounds(), 1u);
}

TEST(EvictorTest, RunsEachIntervalAndEndsWithItsObject) {
  SegmentPool pool(SmallPool(4 * kMiB));
  ObjectStore store({.pool = &pool});
  Evictor evictor(&store, std::chrono::milliseconds(1));
  const Deadline deadline = Soon();
  while (evictor.rounds() < 3 && !deadline.Passed()) std::this_thread::yield();
  EXPECT_GE(evictor.rounds(), 3u);
}

}  // namespace
}  // namespace ems::server
