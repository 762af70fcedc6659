#pragma once
// Memory that direct I/O can be done from and to.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/bytes.h"

namespace ems::ssd {

// What direct I/O must be aligned to, on every disk we know of.
inline constexpr uint64_t kBlockBytes = 4 * kKiB;

// Move-only; grows when asked for more, and keeps it. Threading: one thread (holder).
class AlignedBuffer final {
 public:
  AlignedBuffer() = default;
  AlignedBuffer(AlignedBuffer&&) = default;
  AlignedBuffer& operator=(AlignedBuffer&&) = default;

  // `bytes` of it, rounded up to whole blocks; contents are undefined.
  MutableBytes Take(uint64_t bytes) {
    const uint64_t rounded = RoundUp(bytes, kBlockBytes);
    if (rounded > room_) {
      memory_ = std::vector<std::byte>(rounded + kBlockBytes);
      room_ = rounded;
    }
    const auto address = reinterpret_cast<uintptr_t>(memory_.data());
    return {memory_.data() + (RoundUp(address, kBlockBytes) - address), rounded};
  }
  uint64_t room() const { return room_; }

 private:
  std::vector<std::byte> memory_;
  uint64_t room_ = 0;
};

}  // namespace ems::ssd
