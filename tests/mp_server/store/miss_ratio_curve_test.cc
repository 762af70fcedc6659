// What must hold: the estimate from sampled keys is that of an exact LRU over all look-ups, within
// 0.02, whatever the look-ups and sizes; memory is bounded; and the estimate follows the traffic.
#include "mp_server/store/miss_ratio_curve.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <unordered_map>
#include <vector>

#include "bench/trace/trace_maker.h"
#include "common/bytes.h"
#include "common/hash.h"

namespace ems::server {
namespace {

constexpr TimePoint kStart{std::chrono::hours(1)};

struct Access {
  uint64_t key = 0;
  uint64_t bytes = 0;
};
using Accesses = std::vector<Access>;

uint64_t HashOf(uint64_t key) { return HashTo128(std::as_bytes(std::span(&key, 1))).lo; }

// The memory with which each access would have found its value: the values used since its last use,
// and itself. None: it never was.
std::vector<uint64_t> ExactDistances(const Accesses& accesses) {
  std::vector<uint64_t> sums(accesses.size(), 0), distances;
  uint64_t total = 0;
  const auto add = [&](size_t at, uint64_t bytes) {
    total += bytes;
    for (size_t i = at + 1; i <= sums.size(); i += i & (~i + 1)) sums[i - 1] += bytes;
  };
  const auto up_to = [&](size_t at) {
    uint64_t bytes = 0;
    for (size_t i = at + 1; i > 0; i &= i - 1) bytes += sums[i - 1];
    return bytes;
  };
  std::unordered_map<uint64_t, size_t> last;
  for (size_t now = 0; now < accesses.size(); ++now) {
    const auto [key, bytes] = accesses[now];
    if (const auto used = last.find(key); used != last.end()) {
      distances.push_back(total - up_to(used->second) + bytes);
      add(used->second, ~bytes + 1);
    }
    last[key] = now;
    add(now, bytes);
  }
  std::ranges::sort(distances);
  return distances;
}

uint64_t UniqueBytes(const Accesses& accesses) {
  std::unordered_map<uint64_t, uint64_t> sizes;
  for (const auto& [key, bytes] : accesses) sizes[key] = bytes;
  return std::accumulate(sizes.begin(), sizes.end(), uint64_t{0},
                         [](uint64_t sum, const auto& one) { return sum + one.second; });
}

// As a cache that stores what was missed.
void Use(MissRatioCurve* curve, uint64_t hash, uint64_t bytes) {
  curve->Count(1, 0);
  if (hash >= curve->below() || curve->Reuse(hash)) return;
  curve->First(hash, std::nullopt);
  curve->Store(hash, bytes);
}

void UseAll(MissRatioCurve* curve, const Accesses& accesses) {
  for (const auto& [key, bytes] : accesses) Use(curve, HashOf(key), bytes);
}

// The mean over memories of a 64th of all values to all of them.
double MeanError(const Accesses& accesses) {
  MissRatioCurve curve;
  const uint64_t all = UniqueBytes(accesses);
  curve.Advance(all, kStart);
  UseAll(&curve, accesses);
  EXPECT_TRUE(curve.HasEnough());
  EXPECT_LE(curve.keys(), MissRatioCurve::kKeysMax);
  const std::vector<uint64_t> exact = ExactDistances(accesses);
  constexpr int kPoints = 64;
  double error = 0;
  for (int i = 1; i <= kPoints; ++i) {
    const uint64_t memory = all / kPoints * static_cast<uint64_t>(i);
    const auto hits = std::ranges::upper_bound(exact, memory) - exact.begin();
    const double share = static_cast<double>(hits) / static_cast<double>(accesses.size());
    error += std::abs(curve.HitRate(memory) - share) / kPoints;
  }
  return error;
}

// Popularity falls as rank^-`steepness`.
Accesses Zipf(size_t keys, size_t count, double steepness, uint64_t (*bytes_of)(uint64_t)) {
  std::vector<double> sums(keys);
  double sum = 0;
  for (size_t i = 0; i < keys; ++i)
    sums[i] = sum += std::pow(static_cast<double>(i + 1), -steepness);
  std::mt19937_64 random(7);
  Accesses accesses(count);
  for (Access& one : accesses) {
    const double at = std::uniform_real_distribution<double>(0, sum)(random);
    one.key = static_cast<uint64_t>(std::ranges::lower_bound(sums, at) - sums.begin());
    one.bytes = bytes_of(one.key);
  }
  return accesses;
}
uint64_t OneMiB(uint64_t) { return kMiB; }
uint64_t Mixed(uint64_t key) { return (kKiB << (HashOf(~key) % 11)) + HashOf(~key) % 512; }

TEST(MissRatioCurveTest, IsThatOfAnExactLruUnderSteepPopularity) {
  EXPECT_LE(MeanError(Zipf(200'000, 600'000, 0.9, &OneMiB)), 0.02);
}

TEST(MissRatioCurveTest, IsThatOfAnExactLruWhenSizesAreMixed) {
  EXPECT_LE(MeanError(Zipf(600'000, 800'000, 0.7, &Mixed)), 0.02);
}

TEST(MissRatioCurveTest, IsThatOfAnExactLruWhenKeysGoRound) {
  Accesses accesses;
  for (uint64_t i = 0; i < 600'000; ++i) accesses.push_back({i % 60'000, kMiB});
  EXPECT_LE(MeanError(accesses), 0.02);
}

TEST(MissRatioCurveTest, IsThatOfAnExactLruOverRequestsOfUsers) {
  for (const auto shape : {bench::TraceShape::kSteep, bench::TraceShape::kCyclic}) {
    Accesses accesses;
    for (const auto& request : bench::MakeTrace(shape, 20'000, 1).requests)
      for (const uint64_t block : request.blocks) accesses.push_back({block, 8 * kMiB});
    EXPECT_LE(MeanError(accesses), 0.02) << static_cast<int>(shape);
  }
}

// Numbers below `below()`, evenly.
uint64_t Sampled(uint64_t i) { return (i * 0x9e3779b97f4a7c15) >> 4; }

TEST(MissRatioCurveTest, KeysAreBoundedAndTheLargestHashesGo) {
  MissRatioCurve curve;
  for (uint64_t i = 0; i < 5 * MissRatioCurve::kKeysMax; ++i) Use(&curve, Sampled(i), kMiB);
  EXPECT_EQ(curve.keys(), MissRatioCurve::kKeysMax);
  EXPECT_LT(curve.below(), MissRatioCurve::kBelowMost / 4);
  EXPECT_GT(curve.below(), MissRatioCurve::kBelowMost / 6);
}

TEST(MissRatioCurveTest, WhatOnlyFarMoreMemoryWouldHoldIsForgotten) {
  MissRatioCurve curve;
  for (uint64_t i = 0; i < 5000; ++i) Use(&curve, Sampled(i), kMiB);
  curve.Advance(1600 * kMiB, kStart);  // 100 sampled ones
  EXPECT_EQ(curve.keys(), 1000u);
  EXPECT_TRUE(curve.Reuse(Sampled(4999)));
  EXPECT_FALSE(curve.Reuse(Sampled(0)));
}

TEST(MissRatioCurveTest, AKeyThatIsNeverStoredIsMissedWithAnyMemory) {
  MissRatioCurve curve;
  for (int round = 0; round < 20; ++round) {
    for (uint64_t i = 0; i < 200; ++i) {
      curve.Count(16, 0);
      if (i < 100) {
        if (!curve.Reuse(Sampled(i))) curve.First(Sampled(i), std::nullopt);
        curve.Store(Sampled(i), kMiB);
      } else {
        EXPECT_FALSE(curve.Reuse(Sampled(i)));
        curve.First(Sampled(i), std::nullopt);
      }
    }
  }
  EXPECT_NEAR(curve.HitRate(kGiB * 1024), 0.475, 0.01) << "half of the keys, but the first time";
}

TEST(MissRatioCurveTest, AValueThatWasThereBeforeDoesNotCountTheFirstTime) {
  MissRatioCurve curve;
  for (int round = 0; round < 20; ++round) {
    for (uint64_t i = 0; i < 100; ++i) {
      curve.Count(16, 16);
      if (!curve.Reuse(Sampled(i))) curve.First(Sampled(i), kMiB);
    }
  }
  EXPECT_NEAR(curve.HitRate(3200 * kMiB), 1, 0.01);
  EXPECT_NEAR(curve.HitRate(800 * kMiB), 0, 0.01) << "they go round";
}

TEST(MissRatioCurveTest, WhatIsRemovedOrReplacedTakesItsBytesAlong) {
  MissRatioCurve curve;
  curve.Store(Sampled(1), kMiB);
  curve.Store(Sampled(2), kGiB);
  curve.Store(Sampled(3), kGiB);
  curve.Remove(Sampled(2));
  curve.Remove(Sampled(2));
  curve.Store(Sampled(3), kMiB);
  EXPECT_FALSE(curve.Reuse(Sampled(2)));
  EXPECT_TRUE(curve.Reuse(Sampled(1)));
  curve.Count(16, 16);
  EXPECT_EQ(curve.HitRate(20 * kMiB), 1);
  EXPECT_EQ(curve.HitRate(10 * kMiB), 0);
}

TEST(MissRatioCurveTest, TodaysTrafficOutweighsThatOfBefore) {
  MissRatioCurve curve;
  TimePoint now = kStart;
  const auto pass = [&](uint64_t keys, int times) {
    for (int i = 0; i < times; ++i) {
      for (uint64_t k = 0; k < keys; ++k) {
        Use(&curve, Sampled(k), kMiB);
        curve.Count(15, 0);
      }
    }
    curve.Advance(16000 * kMiB, now);
  };
  pass(100, 20);
  EXPECT_GT(curve.HitRate(3200 * kMiB), 0.9);
  for (int i = 0; i < 6; ++i) {
    now += MissRatioCurve::kHalfLife;
    pass(2000, 1);
  }
  EXPECT_LT(curve.HitRate(3200 * kMiB), 0.1);
}

TEST(MissRatioCurveTest, LostSamplesLowerTheShareOfKeysWhichComesBack) {
  MissRatioCurve curve;
  for (uint64_t i = 0; i < 5000; ++i) Use(&curve, Sampled(i), kMiB);
  for (int i = 0; i < 100; ++i) {
    curve.Lose();
    curve.Advance(kGiB * 1024, kStart);
  }
  EXPECT_EQ(curve.below(), MissRatioCurve::kBelowLeast);
  EXPECT_LT(curve.keys(), 10u);
  EXPECT_FALSE(curve.HasEnough());
}

// What one look-up costs is bounded by O(log n); a storm of them, by there being fewer.
TEST(MissRatioCurveTest, AStormOfLookUpsLeavesEnoughKeys) {
  constexpr uint64_t kStored = 4096, kStep = MissRatioCurve::kBelowMost / kStored;
  MissRatioCurve curve;
  for (uint64_t i = 0; i < kStored; ++i) curve.Store(i * kStep, kMiB);
  const auto looks_for_a_second = [&](int second, uint64_t looks) {
    for (uint64_t i = 0; i < looks; ++i) (void)curve.Reuse(i % kStored * kStep);
    curve.Advance(kGiB * 1024, kStart + std::chrono::seconds(second));
  };
  const auto most = static_cast<uint64_t>(MissRatioCurve::kLooksMost);
  for (int second = 0; second < 10; ++second) looks_for_a_second(second, most - 1);
  EXPECT_EQ(curve.keys(), kStored);
  looks_for_a_second(10, most + 1);
  EXPECT_EQ(curve.keys(), kStored / 2);
  EXPECT_EQ(curve.below(), MissRatioCurve::kBelowMost / 2);
  for (int second = 11; second < 20; ++second) looks_for_a_second(second, 100 * most);
  EXPECT_EQ(curve.keys(), kStored / 4) << "enough";
}

TEST(MissRatioCurveTest, WhenValuesBecomeFewMoreKeysAreSampledAgain) {
  MissRatioCurve curve;
  for (uint64_t i = 0; i < 4 * MissRatioCurve::kKeysMax; ++i) Use(&curve, Sampled(i), kMiB);
  const uint64_t low = curve.below();
  curve.Advance(kGiB, kStart);
  EXPECT_LT(curve.keys(), MissRatioCurve::kKeysMax / 4);
  curve.Advance(kGiB, kStart + MissRatioCurve::kHalfLife);
  EXPECT_EQ(curve.below(), 2 * low);
  EXPECT_EQ(curve.keys(), 0u);
  EXPECT_FALSE(curve.HasEnough());
  for (int i = 2; i < 6; ++i) curve.Advance(kGiB, kStart + i * MissRatioCurve::kHalfLife);
  EXPECT_EQ(curve.below(), MissRatioCurve::kBelowMost);
}

TEST(MissRatioCurveTest, NoHashAndNoSizeIsTooMuch) {
  MissRatioCurve curve;
  for (uint64_t i = 0; i < 2 * MissRatioCurve::kKeysMax; ++i) {
    Use(&curve, i, UINT64_MAX);
    Use(&curve, UINT64_MAX - i, UINT64_MAX);
  }
  EXPECT_LE(curve.keys(), MissRatioCurve::kKeysMax);
  curve.Count(UINT64_MAX, UINT64_MAX);
  for (const uint64_t memory : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 63, UINT64_MAX}) {
    EXPECT_GE(curve.HitRate(memory), 0);
    EXPECT_LE(curve.HitRate(memory), 1);
  }
}

}  // namespace
}  // namespace ems::server
