#pragma once
// The allocator of a session's hazard pointers. The server looks at all below the `end` of the
// session's page, so that it is kept low.
//
// Invariant: `end` is above every hazard pointer that is taken. Bound: shm::kHazardsMax.
#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <optional>

#include "common/check.h"
#include "mp_sdk/internal/stripe.h"
#include "proto/shm_layout.h"

namespace ems::internal {

// Threading: thread-safe, lock-free.
class HazardPointers final {
 public:
  static constexpr uint32_t kEndMin =
      256;  // below it `end` is not lowered: few are soon used again

  // nullopt: all are taken, or just being looked at. Cost: one atomic operation, more when others
  // take at the same moment.
  std::optional<uint32_t> Take(std::atomic<uint32_t>* end) {
    // Threads start in different words, but all in the first ones.
    const size_t start = ThreadStripe() % kSpread;
    for (size_t i = 0; i < kWords; ++i) {
      const size_t word = (start + i) % kWords;
      uint64_t taken = taken_[word].load(std::memory_order_relaxed);
      while (~taken != 0) {
        const uint64_t bit = ~taken & (taken + 1);
        // Acquire, with Give: the last user has cleared it. With LowerEnd: `end` is as it left it.
        if (taken_[word].compare_exchange_weak(taken, taken | bit, std::memory_order_acquire,
                                               std::memory_order_relaxed)) {
          const auto hazard =
              static_cast<uint32_t>(word * kBits + static_cast<size_t>(std::countr_zero(bit)));
          uint32_t before = end->load(std::memory_order_relaxed);
          while (before <= hazard && !end->compare_exchange_weak(before, hazard + 1)) {
          }
          return hazard;
        }
      }
    }
    return std::nullopt;
  }
  void Give(uint32_t hazard, std::atomic<uint32_t>* end) {
    const uint64_t bit = uint64_t{1} << hazard % kBits;
    const uint64_t taken = taken_[hazard / kBits].fetch_and(~bit, std::memory_order_release);
    EMS_CHECK((taken & bit) != 0, "hazard pointer {} is given back twice", hazard);
    if (taken == bit && hazard >= kEndMin) LowerEnd(end);
  }

 private:
  static constexpr size_t kBits = 64;
  static constexpr size_t kWords = shm::kHazardsMax / kBits;
  static constexpr size_t kSpread = kEndMin / kBits;
  static_assert(shm::kHazardsMax % kBits == 0 && kSpread <= kWords);

  // Whoever has taken all hazard pointers above may lower `end`: nobody is about to use one there,
  // having found `end` high enough.
  void LowerEnd(std::atomic<uint32_t>* end) {
    size_t words = kWords;
    uint64_t none = 0;
    while (words > kSpread &&
           taken_[words - 1].compare_exchange_strong(none, ~none, std::memory_order_acquire)) {
      --words;
    }
    if (words == kWords) return;
    const auto lowered = static_cast<uint32_t>(words * kBits);
    uint32_t before = end->load(std::memory_order_relaxed);
    while (before > lowered && !end->compare_exchange_weak(before, lowered)) {
    }
    for (; words < kWords; ++words) taken_[words].store(0, std::memory_order_release);
  }

  std::array<std::atomic<uint64_t>, kWords> taken_{};
};

}  // namespace ems::internal
