#include "bench/harness/byte_lru.h"

#include <gtest/gtest.h>

namespace ems::bench {
namespace {

TEST(ByteLruTest, EvictsTheOldestUntilTheNewOneFits) {
  ByteLru lru(100);
  EXPECT_FALSE(lru.Reference(1, 40));
  EXPECT_FALSE(lru.Reference(2, 40));
  EXPECT_TRUE(lru.Reference(1, 40));
  EXPECT_FALSE(lru.Reference(3, 50)) << "2 goes, 1 was read since";
  EXPECT_EQ(lru.resident_bytes(), 90u);
  EXPECT_TRUE(lru.Reference(1, 40));
  EXPECT_FALSE(lru.Reference(2, 100)) << "all others go";
  EXPECT_EQ(lru.resident_bytes(), 100u);
}

TEST(ByteLruTest, WhatIsLargerThanTheCapacityIsNotStored) {
  ByteLru lru(100);
  EXPECT_FALSE(lru.Reference(1, 60));
  EXPECT_FALSE(lru.Reference(2, 101));
  EXPECT_FALSE(lru.Reference(2, 101));
  EXPECT_TRUE(lru.Reference(1, 60));
}

TEST(ByteLruTest, WhatIsErasedLeavesItsRoom) {
  ByteLru lru(100);
  for (const uint64_t id : {1, 2, 3}) lru.Insert(id, 30);
  lru.EraseIf([](uint64_t id) { return id != 2; });
  EXPECT_EQ(lru.resident_bytes(), 30u);
  EXPECT_FALSE(lru.Touch(1));
  EXPECT_FALSE(lru.Reference(4, 70)) << "has room beside 2";
  EXPECT_TRUE(lru.Touch(2));
  EXPECT_TRUE(lru.Touch(4));
}

}  // namespace
}  // namespace ems::bench
