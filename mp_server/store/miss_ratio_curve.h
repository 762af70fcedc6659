#pragma once
// Which share of the look-ups of a namespace would find their value in an LRU cache of any size,
// estimated from some of its keys: SHARDS of fixed size, corrected by the number of all look-ups
// (Waldspurger et al., FAST'15, "SHARDS-adj").
//
// A key is sampled when its hash is below `below()`. The values of sampled keys are kept in LRU
// order; the values that were used since a key was used last, scaled by 1 / (share of keys that are
// sampled), are the memory with which it would have been there still. With more than kKeysMax keys
// the largest hash goes, and `below()` falls to it. Values come with Store, as in the cache itself:
// a key that is looked up and never stored is missed with any memory.
//
// Bound: kKeysMax keys of about 100 bytes, 0.8 MiB; those that only more than kMemoriesKept times
// the namespace's memory would hold are forgotten. At first one key in 16 is sampled: below some
// thousand objects the estimate is coarse, and with fewer than kKeysLeast sampled there is none.
// With more than kLooksMost look-ups a second of sampled keys half of the keys go, down to
// kKeysEnough: each costs a microsecond, as it finds nothing of this in the CPU's caches.
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "common/clock.h"

namespace ems::server {

// Threading: caller locks. Cost: O(log kKeysMax) a call unless said; allocates for a new key.
class MissRatioCurve final {
 public:
  static constexpr size_t kKeysMax = 8192;
  static constexpr uint64_t kBelowMost = uint64_t{1} << 60;  // one key in 16
  static constexpr uint64_t kBelowLeast = uint64_t{1}
                                          << 48;  // when samples are lost; by keys: less
  static constexpr double kMemoriesKept = 10;
  static constexpr size_t kKeysLeast = 64;
  static constexpr size_t kKeysEnough = 1024;
  static constexpr double kLooksMost = 4000;
  static constexpr double kSamplesLeast = 1000;
  // What was counted before counts half: an estimate is that of the last half hour.
  static constexpr Duration kHalfLife = std::chrono::minutes(10);

  MissRatioCurve();

  // Keys whose hash is below it are sampled; calls for others do nothing.
  uint64_t below() const { return below_; }
  size_t keys() const { return keys_.size(); }

  // A look-up. False: the key is not known here, and First is due.
  bool Reuse(uint64_t hash);
  // A look-up of such a key, which found a value of `bytes` in DRAM (how long it was there is not
  // known, and it does not count), or nothing: a miss with any memory.
  void First(uint64_t hash, std::optional<uint64_t> bytes);
  // A value was stored, or brought to DRAM: it is the youngest.
  void Store(uint64_t hash, uint64_t bytes);
  void Remove(uint64_t hash);
  // All look-ups, sampled or not, and those that found a value in DRAM.
  void Count(uint64_t lookups, uint64_t hits);
  // Some look-ups of sampled keys were not told: fewer keys are sampled from the next Advance on.
  void Lose() { losing_ = true; }

  // To be called each second or so. `memory_bytes`: the namespace's, as of now. Cost: mostly O(1);
  // each kHalfLife O(keys).
  void Advance(uint64_t memory_bytes, TimePoint now);

  bool HasEnough() const { return samples_ >= kSamplesLeast && keys_.size() >= kKeysLeast; }
  uint64_t samples() const { return static_cast<uint64_t>(samples_); }
  uint64_t lookups() const { return static_cast<uint64_t>(lookups_); }
  uint64_t hits() const { return static_cast<uint64_t>(hits_); }
  // The share of look-ups, lately, that would find their value in `memory_bytes` of values.
  double HitRate(uint64_t memory_bytes) const;

 private:
  // Distances in bytes: 16 buckets for each power of two.
  static constexpr size_t kPartsLog2 = 4;
  static constexpr size_t kBuckets = 64 << kPartsLog2;
  struct Value {
    uint32_t position = 0;
    uint64_t bytes = 0;
  };
  using Keys = std::map<uint64_t, Value>;  // by hash: the largest one goes first

  static size_t BucketOf(uint64_t bytes);
  static double BucketStart(size_t bucket);
  double weight() const;  // look-ups that one of a sampled key stands for
  void PutOnTop(Keys::value_type* key);
  void TakeOut(const Value& value);
  void Erase(Keys::iterator key);
  void Track(uint64_t hash, uint64_t bytes);
  void Trim();
  void Renumber();
  void AddAt(size_t position, uint64_t bytes);
  uint64_t BytesUpTo(size_t position) const;
  void SampleBelow(uint64_t below);
  void SampleHalf();
  void BoundLooks(TimePoint now);
  void Decay();
  void Forget();

  uint64_t below_ = kBelowMost;
  uint64_t below_most_ = kBelowMost;
  Keys keys_;
  // The LRU order: positions, the oldest first; null: empty. Each with its bytes in `sums_`, a
  // Fenwick tree of as many places.
  std::vector<Keys::value_type*> order_;
  std::vector<uint64_t> sums_;
  size_t oldest_ = 0;  // nothing below
  size_t next_ = 0;
  uint64_t bytes_ = 0;  // of all keys
  double bytes_kept_ = 0x1p63;

  std::array<double, kBuckets> reuses_{};  // look-ups, by the memory that they need
  double counted_ = 0;                     // those, and the misses with any memory
  double unknown_ = 0;                     // look-ups whose distance is not known
  double lookups_ = 0, hits_ = 0, samples_ = 0;
  uint64_t looks_ = 0;   // at sampled keys, since looks_from_
  bool losing_ = false;  // since the last Advance
  bool lossy_ = false;   // since the last decay: lookups_ says more than counted_ can
  TimePoint looks_from_{}, decayed_at_{};
};

}  // namespace ems::server
