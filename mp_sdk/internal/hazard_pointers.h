#pragma once
// The allocator of a session's hazard pointers.
//
// Bound: shm::kHazardsMax.
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
  // nullopt: all are taken. Cost: one atomic operation, more when others take at the same moment.
  std::optional<uint32_t> Take() {
    // Threads start in different words, but all in the first ones: the server looks at all up to
    // the highest that was ever used.
    const size_t start = ThreadStripe() % kSpread;
    for (size_t i = 0; i < kWords; ++i) {
      const size_t word = (start + i) % kWords;
      uint64_t taken = taken_[word].load(std::memory_order_relaxed);
      while (~taken != 0) {
        const uint64_t bit = ~taken & (taken + 1);
        // Acquire, with Give: the last user has cleared it.
        if (taken_[word].compare_exchange_weak(taken, taken | bit, std::memory_order_acquire,
                                               std::memory_order_relaxed)) {
          return static_cast<uint32_t>(word * kBits + static_cast<size_t>(std::countr_zero(bit)));
        }
      }
    }
    return std::nullopt;
  }
  void Give(uint32_t hazard) {
    const uint64_t bit = uint64_t{1} << hazard % kBits;
    const uint64_t taken = taken_[hazard / kBits].fetch_and(~bit, std::memory_order_release);
    EMS_CHECK((taken & bit) != 0, "hazard pointer {} is given back twice", hazard);
  }

 private:
  static constexpr size_t kBits = 64;
  static constexpr size_t kWords = shm::kHazardsMax / kBits;
  static constexpr size_t kSpread = 4;
  static_assert(shm::kHazardsMax % kBits == 0 && kSpread <= kWords);
  std::array<std::atomic<uint64_t>, kWords> taken_{};
};

}  // namespace ems::internal
