#pragma once
// The slots that may be published to, one bit each, and how often each has been lost: what began
// before a loss does not count for the slot that has come back since.
#include <array>
#include <atomic>
#include <bit>
#include <bitset>
#include <cstdint>

#include "common/ids.h"

namespace ems::server {

// Threading: thread-safe; Set from one thread.
class OwnedSlots final {
 public:
  void Set(const std::bitset<kSlotCount>& owned) {
    for (size_t word = 0; word < words_.size(); ++word) {
      uint64_t bits = 0;
      for (size_t bit = 0; bit < 64; ++bit) bits |= uint64_t{owned[word * 64 + bit]} << bit;
      // Counted before the slot can come back: who finds it owned again sees that it was lost.
      uint64_t lost = words_[word].exchange(bits, std::memory_order_acq_rel) & ~bits;
      for (; lost != 0; lost &= lost - 1) {
        const size_t slot = word * 64 + static_cast<size_t>(std::countr_zero(lost));
        losses_[slot].fetch_add(1, std::memory_order_release);
      }
    }
  }
  bool Has(uint16_t slot) const {
    return (words_[slot / 64 % words_.size()].load(std::memory_order_acquire) >> (slot % 64) & 1) !=
           0;
  }

  uint32_t losses(uint16_t slot) const {
    return losses_[slot % kSlotCount].load(std::memory_order_acquire);
  }
  // It is owned, and has been since it had been lost so often. Pairs with Set.
  bool HasSince(uint16_t slot, uint32_t losses_then) const {
    return Has(slot) && losses(slot) == losses_then;
  }

 private:
  std::array<std::atomic<uint64_t>, kSlotCount / 64> words_{};
  std::array<std::atomic<uint32_t>, kSlotCount> losses_{};
};

}  // namespace ems::server
