// What must hold: an estimate is made of enough look-ups or of none, counts all look-ups once, and
// threads may tell of them at the same time.
#include "mp_server/store/lookup_sampler.h"

#include <gtest/gtest.h>

#include <vector>

#include "common/bytes.h"
#include "common/thread_pool.h"

namespace ems::server {
namespace {

constexpr TimePoint kStart{std::chrono::hours(1)};
constexpr uint64_t kMemory = 1600 * kMiB;  // of 100 sampled values

Hash128 Sampled(uint64_t i) { return {(i * 0x9e3779b97f4a7c15) >> 4, i}; }

// 200 keys go round: with the memory of 100 none hits, with twice that nearly all.
void GoRound(LookupSampler* sampler, int rounds) {
  for (int round = 0; round < rounds; ++round) {
    for (uint64_t i = 0; i < 200; ++i) {
      sampler->Look(Sampled(i), std::nullopt);
      sampler->Store(Sampled(i), kMiB);
      sampler->Count(16, 0);
    }
  }
}

TEST(LookupSamplerTest, SaysWhatMoreMemoryBrings) {
  LookupSampler sampler;
  EXPECT_TRUE(sampler.Samples(Sampled(7)));
  EXPECT_FALSE(sampler.Samples({UINT64_MAX, 7}));
  (void)sampler.Estimate(kMemory, kStart);
  GoRound(&sampler, 20);
  const HitCurve curve = sampler.Estimate(kMemory, kStart);
  ASSERT_TRUE(curve.enough);
  EXPECT_EQ(curve.memory_bytes, kMemory);
  EXPECT_EQ(curve.lookups, 20u * 200 * 16);
  EXPECT_EQ(curve.hits, 0u);
  EXPECT_EQ(curve.samples, 20u * 200);
  EXPECT_NEAR(curve.estimates[2], 0, 0.01) << "1x";
  EXPECT_NEAR(curve.estimates[4], 0.95, 0.01) << "4x";
}

TEST(LookupSamplerTest, OfTooFewSamplesNothingIsSaid) {
  LookupSampler sampler;
  GoRound(&sampler, 4);
  EXPECT_FALSE(sampler.Estimate(kMemory, kStart).enough);
  GoRound(&sampler, 2);
  EXPECT_FALSE(sampler.Estimate(0, kStart).enough) << "of no memory either";
  EXPECT_TRUE(sampler.Estimate(kMemory, kStart).enough);
}

TEST(LookupSamplerTest, SaysHowOldItIs) {
  LookupSampler sampler;
  GoRound(&sampler, 10);
  EXPECT_EQ(sampler.Estimate(kMemory, kStart).age_s, 0u);
  EXPECT_EQ(sampler.Estimate(kMemory, kStart + std::chrono::seconds(90)).age_s, 90u);
  GoRound(&sampler, 1);
  EXPECT_EQ(sampler.Estimate(kMemory, kStart + std::chrono::seconds(91)).age_s, 0u);
}

TEST(LookupSamplerTest, LostSamplesAreCountedAndLowerTheShare) {
  LookupSampler sampler;
  const uint64_t below = sampler.below();
  sampler.Lose(4096);
  (void)sampler.Estimate(kMemory, kStart);
  EXPECT_EQ(sampler.lost(), 4096u);
  EXPECT_EQ(sampler.below(), below / 2);
}

TEST(LookupSamplerTest, ThreadsTellAtTheSameTime) {
  LookupSampler sampler;
  {
    std::vector<Thread> threads;
    for (uint64_t t = 0; t < 4; ++t) {
      threads.emplace_back("looker", [&sampler, t] {
        for (uint64_t i = 0; i < 5000; ++i) {
          const Hash128 hash = Sampled(i * 4 + t);
          if (!sampler.Samples(hash)) continue;
          sampler.Look(hash, std::nullopt);
          sampler.Store(hash, kMiB);
          if (i % 7 == 0) sampler.Remove(hash);
          if (!sampler.Reuse(hash)) sampler.First(hash, kMiB);
          sampler.Count(2, 1);
        }
      });
    }
    for (int i = 0; i < 100; ++i) (void)sampler.Estimate(kMemory, kStart);
    for (Thread& thread : threads) thread.Join();
  }
  const HitCurve curve = sampler.Estimate(kMemory, kStart);
  EXPECT_GT(curve.lookups, 0u);
  EXPECT_EQ(curve.hits, curve.lookups / 2);
}

}  // namespace
}  // namespace ems::server
