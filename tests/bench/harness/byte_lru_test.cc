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

}  // namespace
}  // namespace ems::bench
