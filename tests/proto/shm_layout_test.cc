#include "proto/shm_layout.h"

#include <gtest/gtest.h>

#include "common/object_key.h"

namespace ems::shm {
namespace {

TEST(ShmLayoutTest, LocationKeepsSegmentAndOffsetApart) {
  constexpr uint64_t kWord = Location(0xfffffffe, uint64_t{255} * kGiB + 64);
  EXPECT_EQ(SegmentOf(kWord), 0xfffffffe);
  EXPECT_EQ(OffsetOf(kWord), uint64_t{255} * kGiB + 64);
}

TEST(ShmLayoutTest, ShardWordKeepsTableAndFlagApart) {
  EXPECT_EQ(TableOf(ShardWord(77, true)), 77u);
  EXPECT_TRUE(IsIncomplete(ShardWord(77, true)));
  EXPECT_FALSE(IsIncomplete(ShardWord(77, false)));
}

TEST(ShmLayoutTest, APlaceIsTwoDifferentBucketsInsideTheShard) {
  for (uint64_t buckets : {uint64_t{2}, uint64_t{4}, uint64_t{1} << 20, kBucketsPerShardMax}) {
    for (int i = 0; i < 1000; ++i) {
      const IndexPlace place = PlaceOf(KeyHash(std::to_string(i)), buckets);
      EXPECT_LT(place.shard, kIndexShards);
      EXPECT_LT(place.first, buckets);
      EXPECT_LT(place.second, buckets);
      EXPECT_NE(place.first, place.second);
    }
  }
}

TEST(ShmLayoutTest, GenerationTagNamesOneUse) {
  EXPECT_EQ(GenerationTag(5, {.lo = 0x1234, .hi = 0}), 5u << 8 | 0x34);
}

}  // namespace
}  // namespace ems::shm
