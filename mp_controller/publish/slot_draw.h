#pragma once
// Weighted rendezvous: among nodes that draw −ln(1 − v) / w with v in (0, 1) from (node, slot), the
// least draw wins, and each node wins with a probability in proportion to w. A draw is at least
// v / w, so that most of them need no logarithm to be seen to lose.
#include <cmath>
#include <cstdint>

#include "common/ids.h"

namespace ems::controller {

inline constexpr double kDrawUnit = 0x1p-53;

// The finalizer of MurmurHash3 (fmix64): each bit of `x` changes half of the result.
constexpr uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdULL;
  x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53ULL;
  return x ^ (x >> 33);
}
constexpr uint64_t DrawKeyOf(NodeId node) { return Mix(node.value()); }
constexpr uint64_t DrawSaltOf(SlotId slot) { return Mix(~uint64_t{slot.value()}); }
// v × 2^53, below 2^53; signed, since that is one instruction to convert.
inline int64_t DrawNumber(uint64_t key, uint64_t salt) {
  const __uint128_t p = static_cast<__uint128_t>(key ^ salt) * 0x9e3779b97f4a7c15ULL;
  return static_cast<int64_t>((static_cast<uint64_t>(p >> 64) ^ static_cast<uint64_t>(p)) >> 11);
}
inline double DrawOf(int64_t number, double inverse_weight) {
  return -std::log1p(-(static_cast<double>(number) + 0.5) * kDrawUnit) * inverse_weight;
}

}  // namespace ems::controller
