#include "cluster/hit_curve.h"

#include <gtest/gtest.h>

#include "proto/controller.pb.h"

namespace ems {
namespace {

constexpr NamespaceRef kNs{NamespaceId(3), 9};

HitCurve CurveOf(uint64_t lookups, double estimate, bool enough = true) {
  HitCurve curve;
  curve.ref = kNs;
  curve.memory_bytes = 100;
  curve.lookups = lookups;
  curve.hits = lookups / 4;
  curve.samples = 10;
  curve.age_s = 7;
  curve.enough = enough;
  curve.estimates.fill(estimate);
  return curve;
}

TEST(HitCurveTest, ComesBackFromTheWireAsItWas) {
  v1::HitCurve proto;
  ToProto(CurveOf(40, 0.375), &proto);
  const HitCurve curve = FromProto(proto);
  EXPECT_EQ(curve.ref, kNs);
  EXPECT_EQ(curve.memory_bytes, 100u);
  EXPECT_EQ(curve.lookups, 40u);
  EXPECT_EQ(curve.hits, 10u);
  EXPECT_EQ(curve.samples, 10u);
  EXPECT_EQ(curve.age_s, 7u);
  ASSERT_TRUE(curve.enough);
  for (const double share : curve.estimates) EXPECT_NEAR(share, 0.375, 1e-4);
  v1::HitCurve without;
  ToProto(CurveOf(40, 0.375, false), &without);
  EXPECT_EQ(without.estimates_size(), 0);
  EXPECT_FALSE(FromProto(without).enough);
}

TEST(HitCurveTest, NumbersThatCannotBeAreBounded) {
  v1::HitCurve proto;
  proto.set_lookups(UINT64_MAX);
  proto.set_hits(UINT64_MAX);
  proto.set_memory_bytes(UINT64_MAX);
  for (int i = 0; i < 6; ++i) proto.add_estimates(UINT32_MAX);
  const HitCurve curve = FromProto(proto);
  EXPECT_LE(curve.hits, curve.lookups);
  EXPECT_LT(curve.lookups, uint64_t{1} << 51);
  EXPECT_EQ(curve.estimates[5], 1);
  proto.add_estimates(1);
  EXPECT_FALSE(FromProto(proto).enough) << "of other memories than these";
}

TEST(HitCurveTest, ServersAreWeightedByTheirLookUps) {
  HitCurve other = CurveOf(5, 1);
  other.ref = {NamespaceId(1), 1};
  HitCurve fresh = CurveOf(100, 0.2);
  fresh.age_s = 2;
  const std::vector<HitCurve> sums =
      SumByNamespace(std::vector{CurveOf(300, 0.6), fresh, CurveOf(1000, 0.9, false), other});
  ASSERT_EQ(sums.size(), 2u);
  EXPECT_EQ(sums[0].ref, other.ref);
  const HitCurve& sum = sums[1];
  EXPECT_EQ(sum.memory_bytes, 300u);
  EXPECT_EQ(sum.lookups, 1400u);
  EXPECT_EQ(sum.hits, 350u);
  EXPECT_EQ(sum.age_s, 2u);
  ASSERT_TRUE(sum.enough);
  EXPECT_NEAR(sum.estimates[3], 0.5, 1e-9) << "the one without an estimate has no say";
  EXPECT_FALSE(SumByNamespace(std::vector{CurveOf(9, 0, false)})[0].enough);
}

TEST(HitCurveTest, TheBusiestAreKept) {
  std::vector<HitCurve> curves;
  for (uint64_t i = 0; i < 2 * kHitCurvesMax; ++i) curves.push_back(CurveOf(i, 0.5));
  KeepBusiest(&curves);
  ASSERT_EQ(curves.size(), kHitCurvesMax);
  EXPECT_EQ(curves.front().lookups, 2 * kHitCurvesMax - 1);
  EXPECT_EQ(curves.back().lookups, kHitCurvesMax);
}

}  // namespace
}  // namespace ems
