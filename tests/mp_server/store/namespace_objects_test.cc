#include "mp_server/store/namespace_objects.h"

#include <gtest/gtest.h>

#include "tests/mp_server/store/memory_fixture.h"

namespace ems::server {
namespace {

class NamespaceObjectsTest : public NamespaceFixture {
 protected:
  NamespaceObjects& objects() { return store_->objects(); }
};

TEST_F(NamespaceObjectsTest, TheLastHoldFreesEntryChunkAndCharge) {
  Make(8 * kMiB, 1000);
  ASSERT_TRUE(PutTick("k", "value").ok());
  {
    const ObjectPin pin = store_->Get("k", false);
    EXPECT_TRUE(store_->Remove("k"));
    EXPECT_EQ(objects().entries().taken(), 1u);
    EXPECT_EQ(objects().quota().used(), 5u);
  }
  EXPECT_EQ(objects().entries().taken(), 0u);
  EXPECT_EQ(objects().quota().used(), 0u);
  EXPECT_EQ(Memory().chunk_bytes, 0u);
}

TEST_F(NamespaceObjectsTest, TheColdestGoesOnlyIfItIsOfTheClassThatIsAskedFor) {
  Make(8 * kMiB);
  ASSERT_TRUE(PutTick("small", std::string(100, 's')).ok());
  ASSERT_TRUE(PutTick("large", std::string(10'000, 'l')).ok());
  const uint8_t large = SizeClasses::Get().For(10'000, 5).size_class;
  int skips_left = 10;
  EXPECT_FALSE(objects().EvictColdest(large, &skips_left).has_value());
  EXPECT_EQ(objects().EvictColdest(ObjectIndex::kAnyClass, &skips_left), 100u);
  EXPECT_EQ(objects().EvictColdest(large, &skips_left), 10'000u);
  EXPECT_FALSE(objects().EvictColdest(ObjectIndex::kAnyClass, &skips_left).has_value());
  EXPECT_EQ(store_->Usage().evicted_objects, 2u);
  EXPECT_EQ(store_->Usage().evicted_bytes, 10'100u);
}

TEST_F(NamespaceObjectsTest, TellsHowLongTheLastOneToGoHadNotBeenUsed) {
  Make(8 * kMiB);
  ASSERT_TRUE(PutTick("a", "value").ok());
  clock_.Advance(std::chrono::seconds(60));
  ASSERT_TRUE(PutTick("b", "value").ok());
  int skips_left = 10;
  ASSERT_TRUE(objects().EvictColdest(ObjectIndex::kAnyClass, &skips_left).has_value());
  EXPECT_GE(store_->Usage().eviction_age, std::chrono::seconds(60));
  ASSERT_TRUE(objects().EvictColdest(ObjectIndex::kAnyClass, &skips_left).has_value());
  EXPECT_LT(store_->Usage().eviction_age, std::chrono::seconds(1));
}

TEST_F(NamespaceObjectsTest, EmptySegmentsGoBackButThoseToKeep) {
  Make(8 * kMiB);
  for (int i = 0; i < 3; ++i)
    ASSERT_TRUE(PutTick(std::to_string(i), std::string(kMiB + kMiB / 2, 'x')).ok());
  ASSERT_EQ(Memory().segments, 3u);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(store_->Remove(std::to_string(i)));
  EXPECT_EQ(objects().ReleaseEmpty(1), 4 * kMiB);
  EXPECT_EQ(Memory().segments, 1u);
  EXPECT_EQ(objects().ReleaseEmpty(0), 2 * kMiB);
}

TEST_F(NamespaceObjectsTest, ASweepDropsWhatIsRefusedAndNothingElse) {
  Make(8 * kMiB);
  for (int i = 0; i < 100; ++i) {
    auto room = store_->Reserve(SlotId(static_cast<uint16_t>(i)), std::to_string(i), 1);
    ASSERT_TRUE(room.ok());
    bool stored = false;
    ASSERT_TRUE(NamespaceStore::Publish(std::move(*room), 1, {}, &stored).ok());
  }
  objects().Sweep([](const void*, uint16_t slot) { return slot % 2 == 0; }, nullptr);
  EXPECT_EQ(store_->Usage().objects, 50u);
  EXPECT_TRUE(store_->Find("4", false).has_value());
  EXPECT_FALSE(store_->Find("5", false).has_value());
  objects().Sweep(nullptr, nullptr);
  EXPECT_EQ(store_->Usage().objects, 0u);
}

}  // namespace
}  // namespace ems::server
