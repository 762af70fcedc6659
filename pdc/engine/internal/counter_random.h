#pragma once
// Random numbers without a state: number i of a stream is a function of (stream, i), the same on
// every machine, in any order.
#include <cstdint>

namespace ems::pdc::internal {

// The finaliser of splitmix64: a bijection whose results pass as random for counted inputs.
inline uint64_t Mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}
inline uint64_t CounterRandom(uint64_t stream, uint64_t counter) {
  return Mix(Mix(stream) ^ (counter * 0xD1342543DE82EF95ULL));
}
// In [0, 1), 53 bits.
inline double UnitRandom(uint64_t stream, uint64_t counter) {
  return static_cast<double>(CounterRandom(stream, counter) >> 11) * 0x1.0p-53;
}

}  // namespace ems::pdc::internal
