#pragma once
// The slots that may be published to: one bit each.
#include <array>
#include <atomic>
#include <bitset>
#include <cstdint>

#include "common/ids.h"

namespace ems::server {

// Threading: thread-safe.
class OwnedSlots final {
 public:
  void Set(const std::bitset<kSlotCount>& owned) {
    for (size_t word = 0; word < words_.size(); ++word) {
      uint64_t bits = 0;
      for (size_t bit = 0; bit < 64; ++bit) bits |= uint64_t{owned[word * 64 + bit]} << bit;
      words_[word].store(bits, std::memory_order_release);
    }
  }
  bool Has(uint16_t slot) const {
    return (words_[slot / 64 % words_.size()].load(std::memory_order_acquire) >> (slot % 64) & 1) !=
           0;
  }

 private:
  std::array<std::atomic<uint64_t>, kSlotCount / 64> words_{};
};

}  // namespace ems::server
