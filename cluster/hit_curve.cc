#include "cluster/hit_curve.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "proto/controller.pb.h"

namespace ems {
namespace {

constexpr double kWhole = 65'535;
// Sums of thousands of servers fit into a word.
constexpr uint64_t kMost = uint64_t{1} << 50;

// A curve on its way to be that of several servers: `curve.estimates` are hits, not shares.
struct Sum {
  HitCurve curve;
  double weight = 0;
};

void Add(const HitCurve& one, Sum* sum) {
  HitCurve& all = sum->curve;
  all.age_s = sum->curve.ref == NamespaceRef() ? one.age_s : std::min(all.age_s, one.age_s);
  all.ref = one.ref;
  all.memory_bytes += one.memory_bytes;
  all.lookups += one.lookups;
  all.hits += one.hits;
  all.samples += one.samples;
  if (!one.enough) return;
  const auto weight = static_cast<double>(std::max<uint64_t>(one.lookups, 1));
  sum->weight += weight;
  for (size_t i = 0; i < all.estimates.size(); ++i) all.estimates[i] += weight * one.estimates[i];
}

}  // namespace

void ToProto(const HitCurve& curve, v1::HitCurve* proto) {
  proto->set_namespace_id(curve.ref.id.value());
  proto->set_generation(curve.ref.generation);
  proto->set_memory_bytes(curve.memory_bytes);
  proto->set_lookups(curve.lookups);
  proto->set_hits(curve.hits);
  proto->set_samples(curve.samples);
  proto->set_age_s(curve.age_s);
  if (!curve.enough) return;
  for (const double share : curve.estimates)
    proto->add_estimates(static_cast<uint32_t>(std::lround(std::clamp(share, 0.0, 1.0) * kWhole)));
}

HitCurve FromProto(const v1::HitCurve& proto) {
  HitCurve curve;
  curve.ref = {NamespaceId(proto.namespace_id()), proto.generation()};
  curve.memory_bytes = std::min(proto.memory_bytes(), kMost);
  curve.lookups = std::min(proto.lookups(), kMost);
  curve.hits = std::min(proto.hits(), curve.lookups);
  curve.samples = std::min(proto.samples(), kMost);
  curve.age_s = proto.age_s();
  curve.enough = proto.estimates_size() == static_cast<int>(curve.estimates.size());
  if (!curve.enough) return curve;
  for (size_t i = 0; i < curve.estimates.size(); ++i)
    curve.estimates[i] = std::min(proto.estimates(static_cast<int>(i)) / kWhole, 1.0);
  return curve;
}

void KeepBusiest(std::vector<HitCurve>* curves) {
  std::ranges::sort(*curves, std::greater<>(), &HitCurve::lookups);
  if (curves->size() > kHitCurvesMax) curves->resize(kHitCurvesMax);
}

std::vector<HitCurve> SumByNamespace(std::span<const HitCurve> curves) {
  std::map<NamespaceRef, Sum> sums;
  for (const HitCurve& one : curves) Add(one, &sums[one.ref]);
  std::vector<HitCurve> list;
  for (auto& [ref, sum] : sums) {
    sum.curve.enough = sum.weight > 0;
    for (double& share : sum.curve.estimates) share = sum.curve.enough ? share / sum.weight : 0;
    list.push_back(sum.curve);
  }
  return list;
}

}  // namespace ems
