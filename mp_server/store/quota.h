#pragma once
// The quota of one namespace on this server, in bytes of values, and exact to the byte.
//
// Invariant: used ≤ limit after every successful charge; only lowering the limit can leave used
// above it, until evictions have caught up. A charge is taken before memory is, and given back when
// the memory is free again, so pinned bytes of removed objects still count.
#include <atomic>
#include <cstdint>

#include "common/check.h"

namespace ems::server {

// Threading: thread-safe. Cost: one atomic operation.
class Quota final {
 public:
  // False, and nothing charged, when `bytes` do not fit.
  [[nodiscard]] bool TryCharge(uint64_t bytes);
  void Refund(uint64_t bytes);
  // 0: no limit.
  void SetLimit(uint64_t bytes) { limit_.store(bytes, std::memory_order_relaxed); }
  void SetReserved(uint64_t bytes) { reserved_.store(bytes, std::memory_order_relaxed); }

  uint64_t used() const { return used_.load(std::memory_order_relaxed); }
  uint64_t limit() const { return limit_.load(std::memory_order_relaxed); }
  uint64_t reserved() const { return reserved_.load(std::memory_order_relaxed); }
  bool exceeded() const { return limit() != 0 && used() > limit(); }

 private:
  std::atomic<uint64_t> used_{0};
  std::atomic<uint64_t> limit_{0};
  std::atomic<uint64_t> reserved_{0};
};

}  // namespace ems::server
