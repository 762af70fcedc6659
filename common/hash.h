#pragma once
// The one door to xxHash. XXH3 runs at about the speed of memory; it finds faults and spreads keys,
// it does not resist an adversary (ems_context has SHA-256 for that).
#include <compare>
#include <cstdint>
#include <memory>

#include "common/bytes.h"

namespace ems {

// XXH3-64 of `bytes`. Cost: O(n), about memory speed; no allocation.
uint64_t Hash64(ConstBytes bytes, uint64_t seed = 0);

struct Hash128 {
  uint64_t lo = 0;
  uint64_t hi = 0;
  friend constexpr auto operator<=>(const Hash128&, const Hash128&) = default;
};
// XXH3-128 of `bytes`. Cost as Hash64.
Hash128 HashTo128(ConstBytes bytes, uint64_t seed = 0);

// XXH3-64 of bytes that arrive in parts; the same value as Hash64 of them all. Threading: one
// thread.
class Hash64Stream final {
 public:
  Hash64Stream();
  ~Hash64Stream();
  Hash64Stream(const Hash64Stream&) = delete;
  Hash64Stream& operator=(const Hash64Stream&) = delete;

  void Reset();
  void Update(ConstBytes bytes);
  uint64_t Digest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ems
