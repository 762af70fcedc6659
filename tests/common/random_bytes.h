#pragma once
// Bytes that look like any others, the same for the same seed.
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace ems {

inline std::vector<std::byte> RandomBytes(size_t size, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

}  // namespace ems
