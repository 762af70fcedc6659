#pragma once
// Samples the look-ups of one namespace, over sockets and one-sided, for the estimate of what more
// memory would bring (miss_ratio_curve.h).
//
// Bound: that of the curve. At first one look-up in 16 takes the lock, and with more keys than the
// curve keeps ever fewer.
#include <atomic>
#include <cstdint>
#include <optional>

#include "cluster/hit_curve.h"
#include "common/clock.h"
#include "common/guarded.h"
#include "common/hash.h"
#include "mp_server/store/miss_ratio_curve.h"

namespace ems::server {

// Threading: thread-safe; a leaf lock, which is taken for sampled keys alone.
class LookupSampler final {
 public:
  // Whether calls for the key are due.
  bool Samples(Hash128 hash) const { return hash.lo < below(); }
  uint64_t below() const { return below_.load(std::memory_order_relaxed); }

  // A look-up, which found a value of `bytes` in DRAM, or none there.
  void Look(Hash128 hash, std::optional<uint64_t> bytes);
  // The same in two steps, for who does not know what was found: false: First is due.
  bool Reuse(Hash128 hash);
  void First(Hash128 hash, std::optional<uint64_t> bytes);
  // As of MissRatioCurve.
  void Store(Hash128 hash, uint64_t bytes);
  void Remove(Hash128 hash);
  // Clients' rings have lost so many look-ups, as far as they are believed.
  void Lose(uint64_t lookups);
  // All look-ups, and those that found a value in DRAM. Cost: two atomic operations.
  void Count(uint64_t lookups, uint64_t hits);

  uint64_t lost() const { return lost_.load(std::memory_order_relaxed); }
  // `memory_bytes`: what the namespace may have or has. All but the namespace's name.
  // Cost: the lock for some microseconds. To be called each second or so.
  HitCurve Estimate(uint64_t memory_bytes, TimePoint now);

 private:
  struct State {
    MissRatioCurve curve;
    uint64_t samples = 0;  // at the last Estimate
    TimePoint sampled_at{};
  };
  std::atomic<uint64_t> below_{MissRatioCurve::kBelowMost};
  alignas(64) std::atomic<uint64_t> lookups_{0};  // since the last Estimate
  std::atomic<uint64_t> hits_{0};
  std::atomic<uint64_t> lost_{0};
  Guarded<State> state_;
};

}  // namespace ems::server
