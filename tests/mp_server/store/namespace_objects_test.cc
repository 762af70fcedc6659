#include "mp_server/store/namespace_objects.h"

#include <gtest/gtest.h>

#include "mp_server/store/namespace_store.h"
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

std::string SampledKey(const NamespaceStore& store, int number) {
  for (int i = 0;; ++i) {
    const std::string key = std::to_string(number) + "." + std::to_string(i);
    if (store.HashOf(key).lo < MissRatioCurve::kBelowMost) return key;
  }
}

TEST_F(NamespaceObjectsTest, LookUpsAndPutsOfSampledKeysMakeTheEstimate) {
  Make(8 * kMiB, kMiB);
  constexpr int kKeys = 100;
  constexpr uint64_t kLookups = 20 * kKeys;
  for (int round = 0; round < 20; ++round) {
    for (int i = 0; i < kKeys; ++i) {
      const std::string key = SampledKey(*store_, i);
      if (!store_->Get(key, true)) {
        ASSERT_TRUE(PutTick(key, "value").ok());
      }
      objects().sampler().Count(16, round > 0 ? 16 : 0);
    }
  }
  const HitCurve curve = store_->Usage().curve;
  EXPECT_EQ(curve.ref, store_->ref());
  EXPECT_EQ(curve.samples, kLookups);
  EXPECT_EQ(curve.memory_bytes, kMiB) << "the quota";
  ASSERT_TRUE(curve.enough);
  EXPECT_NEAR(curve.estimates[2], 0.95, 0.001);
  EXPECT_TRUE(store_->Remove(SampledKey(*store_, 0)));
  EXPECT_FALSE(objects().sampler().Reuse(store_->HashOf(SampledKey(*store_, 0))));
  EXPECT_FALSE(store_->Get("not a use", false));
  EXPECT_EQ(store_->Usage().curve.samples, kLookups);
}

// A client that misses and stores what it missed: the miss comes first, though it lies in its page
// until then.
TEST_F(NamespaceObjectsTest, AMissThatAPutMakesUpForIsAMiss) {
  Make(8 * kMiB, kMiB);
  ASSERT_TRUE(store_->Share().ok());
  auto made = fabric::ShmSegment::CreatePages(shm::kSessionBytes, true);
  ASSERT_TRUE(made.ok()) << made.status();
  auto* page = new (made->bytes().data()) shm::SessionPage;
  store_->sharing().AddSession(1, std::make_shared<const fabric::ShmSegment>(*std::move(made)));
  const auto look_up = [&](const std::string& key) {
    const Hash128 hash = store_->HashOf(key);
    const uint64_t at = page->sample_count;
    page->samples[at].hash_lo = hash.lo;
    page->samples[at].hash_hi = hash.hi;
    page->sample_count = at + 1;
    objects().sampler().Count(16, 0);
  };
  for (int i = 0; i < 1100; ++i) {
    const std::string key = SampledKey(*store_, i);
    look_up(key);
    ASSERT_TRUE(PutTick(key, "value").ok());
  }
  HitCurve curve = store_->Usage().curve;
  ASSERT_TRUE(curve.enough);
  EXPECT_EQ(curve.samples, 1100u);
  EXPECT_NEAR(curve.estimates[5], 0, 0.001);
  for (int i = 0; i < 1100; ++i) look_up(SampledKey(*store_, i));
  EXPECT_TRUE(TakeSamples(&objects()));
  curve = store_->Usage().curve;
  EXPECT_EQ(curve.samples, 2200u);
  EXPECT_NEAR(curve.estimates[5], 0.5, 0.001);
  page->sample_count = UINT64_MAX;
  EXPECT_FALSE(TakeSamples(&objects()));
  EXPECT_EQ(store_->Usage().samples_lost, shm::kSamplesMax);
  store_->sharing().RemoveSession(1);
}

}  // namespace
}  // namespace ems::server
