#pragma once
// Which keys have copies on other servers for a while, as answers of their owners have said.
//
// A word a key: 29 bits of its hash, which holders, and until when. Two keys may share a word's
// bits and place: a read of the other one asks a server that has no copy of it, and its owner after
// that. Bound: kPlaces words; a key takes the place of one that has the same.
#include <array>
#include <atomic>
#include <cstdint>

#include "common/clock.h"
#include "proto/copy_hint.h"

namespace ems::internal {

// Threading: thread-safe.
class KnownCopies final {
 public:
  static constexpr size_t kPlaces = 512;

  // Nothing has been learnt yet: the caller needs no hash. Cost: a load.
  bool any() const { return any_.load(std::memory_order_relaxed); }
  // `hash`: of namespace and key.
  void Learn(uint64_t hash, wire::CopyHint hint, TimePoint now) {
    if (hint.holders == 0 || hint.seconds == 0) return;
    const uint32_t until = MsOf(now) + hint.seconds * 1000;
    PlaceOf(hash).store(Tag(hash) | uint64_t{hint.holders} << 32 | until,
                        std::memory_order_relaxed);
    any_.store(true, std::memory_order_relaxed);
  }
  // Which of its HotHolders have a copy; a bit each. Cost: a load.
  uint8_t Of(uint64_t hash, TimePoint now) const {
    const uint64_t word = PlaceOf(hash).load(std::memory_order_relaxed);
    if ((word ^ Tag(hash)) >> kTagShift != 0) return 0;
    const auto left = static_cast<int32_t>(static_cast<uint32_t>(word) - MsOf(now));
    if (left <= 0 || left > static_cast<int32_t>(wire::kCopySecondsMax * 1000)) return 0;
    return static_cast<uint8_t>(word >> 32 & 7);
  }
  // One of them has no copy after all, or does not answer: none is asked until its owner has said
  // so again.
  void Forget(uint64_t hash) {
    auto& place = PlaceOf(hash);
    uint64_t word = place.load(std::memory_order_relaxed);
    if ((word ^ Tag(hash)) >> kTagShift == 0)
      place.compare_exchange_strong(word, 0, std::memory_order_relaxed);
  }

 private:
  static constexpr int kTagShift = 35;
  static uint64_t Tag(uint64_t hash) { return hash >> kTagShift << kTagShift; }
  static uint32_t MsOf(TimePoint now) {
    return static_cast<uint32_t>(now.time_since_epoch() / std::chrono::milliseconds(1));
  }
  std::atomic<uint64_t>& PlaceOf(uint64_t hash) { return words_[hash % kPlaces]; }
  const std::atomic<uint64_t>& PlaceOf(uint64_t hash) const { return words_[hash % kPlaces]; }

  std::atomic<bool> any_{false};
  std::array<std::atomic<uint64_t>, kPlaces> words_{};
};

}  // namespace ems::internal
