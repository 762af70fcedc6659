#include "mp_server/store/room_maker.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "tests/mp_server/store/memory_fixture.h"

namespace ems::server {
namespace {

class RoomMakerTest : public NamespaceFixture {
 protected:
  // Stores without filling the value.
  Status Store(const std::string& key, uint64_t bytes) {
    clock_.Advance(Duration(1));
    EMS_ASSIGN_OR_RETURN(Reservation room, store_->Reserve(SlotId(1), key, bytes));
    bool stored = false;
    return NamespaceStore::Publish(std::move(room), bytes, {}, &stored);
  }
  // Stores `count` objects of sizes drawn log-uniformly, reading others; the least payload share of
  // the full pool.
  double Churn(uint64_t bytes_min, uint64_t bytes_max, int count) {
    std::uniform_real_distribution<double> exponent(std::log(static_cast<double>(bytes_min)),
                                                    std::log(static_cast<double>(bytes_max)));
    double least = 1;
    for (int i = 0; i < count; ++i) {
      const auto bytes = static_cast<uint64_t>(std::lround(std::exp(exponent(random_))));
      const Status stored = Store("object" + std::to_string(next_++), bytes);
      EXPECT_TRUE(stored.ok()) << stored;
      const uint64_t back = random_() % std::min<uint64_t>(next_, 200);
      store_->Get("object" + std::to_string(next_ - 1 - back), true);
      if (store_->Usage().evicted_objects > 0) least = std::min(least, Efficiency());
    }
    return least;
  }
  double Efficiency() {
    return static_cast<double>(store_->Usage().value_bytes) /
           static_cast<double>(pool_->stats().bytes_max);
  }
  std::mt19937 random_{7};
  uint64_t next_ = 0;
};

TEST_F(RoomMakerTest, AFullPoolOfUniformBlocksIsPayloadTo95Percent) {
  for (const uint64_t block : {uint64_t{147'456}, uint64_t{147'000}, 16 * kKiB, kMiB}) {
    Make(64 * kMiB, 0, 32 * kMiB);
    EXPECT_GE(Churn(block, block, static_cast<int>(160 * kMiB / block)), 0.95) << block;
  }
  Make(140 * kMiB, 0, 130 * kMiB);
  Churn(8'994'816, 8'994'816, 60);
  EXPECT_GE(Efficiency(), 0.95 * 130 / 140) << "15 of them in a segment of the default size";
}

// The pool is to the largest object what 1 GiB is to 16 MiB.
TEST_F(RoomMakerTest, AFullPoolOfMixedSizesIsPayloadTo90PercentAlsoWhenTheyShift) {
  Make(256 * kMiB, 0, 64 * kMiB);
  // A moment may be a little worse: one object is 1.6 % of this pool.
  EXPECT_GE(Churn(4 * kKiB, 4 * kMiB, 6000), 0.88);
  EXPECT_GE(Efficiency(), 0.90);
  EXPECT_GE(Churn(4 * kKiB, 128 * kKiB, 12000), 0.88) << "small";
  EXPECT_GE(Efficiency(), 0.90);
  // Over 12 seeds its worst moment is 86.8 to 88.7 %: the pool is full of small ones at first.
  EXPECT_GE(Churn(256 * kKiB, 4 * kMiB, 2000), 0.86) << "large";
  EXPECT_GE(Churn(4 * kKiB, 128 * kKiB, 12000), 0.88) << "small again";
  EXPECT_GE(Efficiency(), 0.90);
}

TEST_F(RoomMakerTest, WhatThePutBeforeFreedIsThereForTheNextReserve) {
  Make(64 * kMiB, 0, 32 * kMiB);
  Churn(100 * kKiB, 100 * kKiB, 1000);
  for (int i = 0; i < 100; ++i) {
    const uint64_t evicted = store_->Usage().evicted_objects;
    clock_.Advance(Duration(1));
    auto room = store_->Reserve(SlotId(1), "r" + std::to_string(i), 100 * kKiB);
    ASSERT_TRUE(room.ok());
    EXPECT_EQ(store_->Usage().evicted_objects, evicted) << "Reserve had to evict";
    bool stored = false;
    ASSERT_TRUE(NamespaceStore::Publish(std::move(*room), 1, {}, &stored).ok());
    EXPECT_EQ(store_->Usage().evicted_objects, evicted + 1) << "no more than was taken";
  }
}

// The neighbours of what is free may all be young: then the window around the newest object lost
// least, and a Put evicted what it had just stored.
TEST_F(RoomMakerTest, WhatWasJustStoredIsNeverFreedForTheNextOne) {
  for (const uint64_t fill : {20 * kKiB, 64 * kKiB, 700 * kKiB}) {
    Make(16 * kMiB, 0, 16 * kMiB);
    Churn(fill, fill, static_cast<int>(40 * kMiB / fill));
    std::uniform_real_distribution<double> exponent(std::log(64.0), std::log(1024.0 * 1024));
    for (int i = 0; i < 3000; ++i) {
      const std::string key = "new" + std::to_string(i);
      ASSERT_TRUE(Store(key, static_cast<uint64_t>(std::exp(exponent(random_)))).ok());
      ASSERT_TRUE(store_->Find(key, false).has_value()) << i << " into a pool of " << fill;
    }
  }
}

TEST_F(RoomMakerTest, NothingIsFreedAheadWhileThereIsMemoryToBeHad) {
  Make(64 * kMiB, 0, 8 * kMiB);
  for (int i = 0; i < 50; ++i) ASSERT_TRUE(Store(std::to_string(i), kMiB).ok());
  EXPECT_EQ(store_->Usage().evicted_objects, 0u);
}

// What was held when its segment was chosen to go left it half used for as long as it was popular.
TEST_F(RoomMakerTest, ASegmentGoesBackWhenTheLastPinInItEnds) {
  Make(8 * kMiB);
  for (int i = 0; i < 400; ++i) ASSERT_TRUE(Store(std::to_string(i), 16 * kKiB).ok());
  std::vector<ObjectPin> pins;
  for (int i = 0; i < 400; ++i)
    if (ObjectPin pin = store_->Get(std::to_string(i), true); i % 100 == 7 && pin)
      pins.push_back(std::move(pin));
  ASSERT_FALSE(pins.empty());
  const uint64_t before = pool_->stats().bytes_in_use;
  for (int i = 0; i < 4; ++i) store_->room().SurrenderSegment(true);
  for (const ObjectPin& pin : pins) EXPECT_TRUE(pin);
  pins.clear();
  EXPECT_EQ(Memory().leaving_bytes(), 0u) << "without another call";
  EXPECT_LT(pool_->stats().bytes_in_use, before);
}

TEST_F(RoomMakerTest, AnObjectThatWasBeingFilledInALeavingSegmentGoesAfterIt) {
  Make(2 * kMiB);
  ASSERT_TRUE(Store("old", 1000).ok());
  auto room = store_->Reserve(SlotId(1), "late", 1000);
  ASSERT_TRUE(room.ok());
  store_->Remove("old");
  ASSERT_FALSE(store_->room().SurrenderSegment(true))
      << "a segment that is all being filled is not chosen";
  bool stored = false;
  ASSERT_TRUE(NamespaceStore::Publish(std::move(*room), 1, {}, &stored).ok());
  ASSERT_TRUE(store_->room().SurrenderSegment(false));
  EXPECT_EQ(Memory().leaving_bytes(), 2 * kMiB);
  EXPECT_EQ(Read("late").size(), 1000u) << "it is there until the segment is emptied";
  store_->room().FinishDraining();
  EXPECT_EQ(Read("late"), "(miss)");
  EXPECT_EQ(Memory().segment_bytes, 0u);
}

TEST_F(RoomMakerTest, WhatIsSettlingInALeavingSegmentGoesInARoundAfterIt) {
  Make(2 * kMiB);
  auto room = store_->Reserve(SlotId(1), "late", 1000);
  ASSERT_TRUE(room.ok());
  bool stored = false;
  ObjectPin pin;
  ASSERT_TRUE(
      NamespaceStore::Publish(std::move(*room), 1, {.pin = &pin, .settling = true}, &stored).ok());
  pin = ObjectPin();
  ASSERT_TRUE(store_->room().SurrenderSegment(true));
  store_->room().FinishDraining();
  {
    const ObjectPin late = store_->Get("late", false);
    ASSERT_TRUE(late);
    late.Settle();
  }
  store_->room().FinishDraining();
  EXPECT_EQ(Read("late"), "(miss)");
  EXPECT_EQ(Memory().segment_bytes, 0u);
}

TEST_F(RoomMakerTest, EmptyValuesAreBoundedInNumberByTheQuota) {
  Make(16 * kMiB, 4 * kMiB);
  const uint64_t most = store_->room().objects_max();
  EXPECT_EQ(most, 4 * kMiB / 512);
  for (uint64_t i = 0; i < most + 100; ++i) ASSERT_TRUE(Store(std::to_string(i), 0).ok());
  const NamespaceUsage usage = store_->Usage();
  EXPECT_EQ(usage.objects, most);
  EXPECT_EQ(usage.objects_max, most);
  EXPECT_EQ(usage.count_evictions, 100u);
  EXPECT_EQ(Read("99"), "(miss)");
  EXPECT_EQ(Read("100"), "");
}

TEST_F(RoomMakerTest, ANamespaceOfHeldObjectsSaysHowManyItMayHave) {
  Make(16 * kMiB, 1000);
  const uint64_t most = store_->room().objects_max();
  EXPECT_EQ(most, 4096u) << "the least";
  std::vector<ObjectPin> pins;
  for (uint64_t i = 0; i < most; ++i) {
    ASSERT_TRUE(Store(std::to_string(i), 0).ok());
    pins.push_back(store_->Get(std::to_string(i), false));
  }
  const Status refused = Store("more", 0);
  EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(Message(refused).find("4096 of 4096 objects"), std::string_view::npos) << refused;
  pins.clear();
  EXPECT_TRUE(Store("more", 0).ok());
}

TEST_F(RoomMakerTest, ALoweredQuotaIsReachedByTrimming) {
  Make(8 * kMiB, 100000);
  for (int i = 0; i < 100; ++i)
    ASSERT_TRUE(PutTick(std::to_string(i), std::string(1000, 'x')).ok());
  store_->SetLimits(10500, 0, 10500);
  EXPECT_FALSE(store_->room().TrimToQuota());
  EXPECT_EQ(store_->Usage().value_bytes, 10000u);
  EXPECT_NE(Read("99"), "(miss)");
  EXPECT_EQ(Read("89"), "(miss)");
}

TEST_F(RoomMakerTest, EvictColdestStopsAtTheCountOrAtTheBytes) {
  Make(8 * kMiB);
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(Store(std::to_string(i), 1000).ok());
  EXPECT_EQ(store_->room().EvictColdest(3, kMiB), 3u);
  EXPECT_EQ(store_->room().EvictColdest(100, 2500), 3u);
  EXPECT_FALSE(store_->Find("5", false).has_value());
  EXPECT_TRUE(store_->Find("6", false).has_value());
  EXPECT_EQ(store_->room().EvictColdest(100, kMiB), 4u) << "all that is left";
}

TEST_F(RoomMakerTest, ExcessIsWhatIsKeptAboveTheReservation) {
  Make(8 * kMiB);
  EXPECT_EQ(store_->room().excess_bytes(), 0);
  store_->SetLimits(0, 4 * kMiB, 0);
  EXPECT_EQ(store_->room().excess_bytes(), -int64_t{4 * kMiB});
  ASSERT_TRUE(Store("a", 1000).ok());
  EXPECT_EQ(store_->room().excess_bytes(), -int64_t{2 * kMiB});
  ASSERT_TRUE(store_->room().SurrenderSegment(false));
  EXPECT_EQ(store_->room().excess_bytes(), -int64_t{4 * kMiB})
      << "without what is being given back";
}

// What is marked may be gone, and its entry another object's, by the time it is evicted.
TEST_F(RoomMakerTest, AMarkedObjectThatWasReplacedMeanwhileIsNotEvictedTwice) {
  Make(8 * kMiB);
  ASSERT_TRUE(Store("a", 1000).ok());
  ASSERT_TRUE(store_->room().SurrenderSegment(false));
  EXPECT_TRUE(store_->Remove("a"));
  ASSERT_TRUE(Store("a", 1000).ok());
  EXPECT_EQ(store_->room().EvictMarked(10), 1u);
  EXPECT_TRUE(store_->Find("a", false).has_value());
  EXPECT_EQ(store_->Usage().evicted_objects, 0u);
}

}  // namespace
}  // namespace ems::server
