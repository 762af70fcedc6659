#include "mp_server/store/lookup_sampler.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace ems::server {

void LookupSampler::Look(Hash128 hash, std::optional<uint64_t> bytes) {
  auto state = state_.Lock();
  if (state->curve.Reuse(hash.lo)) return;
  state->curve.First(hash.lo, bytes);
  below_.store(state->curve.below(), std::memory_order_relaxed);
}

bool LookupSampler::Reuse(Hash128 hash) {
  auto state = state_.Lock();
  return state->curve.Reuse(hash.lo);
}

void LookupSampler::First(Hash128 hash, std::optional<uint64_t> bytes) {
  auto state = state_.Lock();
  state->curve.First(hash.lo, bytes);
  below_.store(state->curve.below(), std::memory_order_relaxed);
}

void LookupSampler::Store(Hash128 hash, uint64_t bytes) {
  auto state = state_.Lock();
  state->curve.Store(hash.lo, bytes);
  below_.store(state->curve.below(), std::memory_order_relaxed);
}

void LookupSampler::Remove(Hash128 hash) {
  auto state = state_.Lock();
  state->curve.Remove(hash.lo);
}

void LookupSampler::Lose(uint64_t lookups) {
  lost_.fetch_add(lookups, std::memory_order_relaxed);
  auto state = state_.Lock();
  state->curve.Lose();
}

void LookupSampler::Count(uint64_t lookups, uint64_t hits) {
  lookups_.fetch_add(lookups, std::memory_order_relaxed);
  hits_.fetch_add(hits, std::memory_order_relaxed);
}

HitCurve LookupSampler::Estimate(uint64_t memory_bytes, TimePoint now) {
  HitCurve estimate;
  estimate.memory_bytes = memory_bytes;
  auto state = state_.Lock();
  MissRatioCurve& curve = state->curve;
  curve.Count(lookups_.exchange(0, std::memory_order_relaxed),
              hits_.exchange(0, std::memory_order_relaxed));
  if (curve.samples() > state->samples || state->sampled_at == TimePoint()) state->sampled_at = now;
  curve.Advance(memory_bytes, now);
  below_.store(curve.below(), std::memory_order_relaxed);
  state->samples = curve.samples();
  estimate.lookups = curve.lookups();
  estimate.hits = std::min(curve.hits(), estimate.lookups);
  estimate.samples = state->samples;
  estimate.age_s = static_cast<uint32_t>(
      std::chrono::duration_cast<std::chrono::seconds>(now - state->sampled_at).count());
  estimate.enough = curve.HasEnough() && memory_bytes > 0;
  for (size_t i = 0; i < estimate.estimates.size() && estimate.enough; ++i) {
    estimate.estimates[i] =
        curve.HitRate(static_cast<uint64_t>(kCurveMemories[i] * static_cast<double>(memory_bytes)));
  }
  return estimate;
}

}  // namespace ems::server
