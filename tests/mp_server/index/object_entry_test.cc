#include "mp_server/index/object_entry.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace ems::server {
namespace {

TEST(EntryPoolTest, HandsOutDistinctEntriesAndRecyclesThem) {
  EntryPool pool;
  std::set<ObjectEntry*> first;
  for (int i = 0; i < 2000; ++i) EXPECT_TRUE(first.insert(pool.Take(2000)).second);
  EXPECT_EQ(pool.taken(), 2000u);
  EXPECT_EQ(pool.Take(2000), nullptr) << "beyond the most";
  for (ObjectEntry* entry : first) pool.Give(entry);
  EXPECT_EQ(pool.taken(), 0u);
  std::vector<ObjectEntry*> again;
  for (int i = 0; i < 2000; ++i) again.push_back(pool.Take(2000));
  for (ObjectEntry* entry : again)
    EXPECT_TRUE(first.contains(entry)) << "a new block though old entries were free";
}

TEST(EntryPoolDeathTest, GivingBackAHeldEntryIsABug) {
  EntryPool pool;
  ObjectEntry* entry = pool.Take(1);
  entry->holds.store(1);
  EXPECT_DEATH(pool.Give(entry), "holds 1");
}

}  // namespace
}  // namespace ems::server
