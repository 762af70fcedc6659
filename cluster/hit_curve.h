#pragma once
// How many of the look-ups of one namespace find a value in DRAM, and how many would with a quarter
// to eight times the memory: an estimate, made by servers (mp_server/store/miss_ratio_curve.h), for
// people to see; nothing is decided by it.
//
// Bound: kHitCurvesMax curves a server.
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "common/ids.h"

namespace ems {
namespace v1 {
class HitCurve;
}

inline constexpr std::array<double, 6> kCurveMemories = {0.25, 0.5, 1, 2, 4, 8};
inline constexpr size_t kHitCurvesMax = 32;

struct HitCurve {
  NamespaceRef ref;
  uint64_t memory_bytes = 0;  // of values: what the namespace may have or, without a quota, has
  uint64_t lookups = 0;       // lately; what is older counts half for each ten minutes
  uint64_t hits = 0;          // of them, in DRAM
  uint64_t samples = 0;       // look-ups that the estimate is made of
  uint32_t age_s = 0;         // since the last of them
  bool enough = false;        // samples for an estimate
  // Share of look-ups that would hit with kCurveMemories[i] × memory_bytes. Only when `enough`.
  std::array<double, kCurveMemories.size()> estimates{};

  double hit_rate() const {
    return lookups == 0 ? 0 : static_cast<double>(hits) / static_cast<double>(lookups);
  }
};

void ToProto(const HitCurve& curve, v1::HitCurve* proto);
// Numbers that cannot be are taken as the nearest that can: hits up to look-ups, shares up to 1.
HitCurve FromProto(const v1::HitCurve& proto);

// The kHitCurvesMax with most look-ups.
void KeepBusiest(std::vector<HitCurve>* curves);
// One curve for each namespace of `curves`, in order of their ids: memories and look-ups added up,
// estimates weighted by look-ups. Servers that know too little have no say in the estimate.
std::vector<HitCurve> SumByNamespace(std::span<const HitCurve> curves);

}  // namespace ems
