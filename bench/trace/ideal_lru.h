#pragma once
// One exact LRU over all bytes of a namespace: what a replay can reach at best with this policy,
// and what the hit rate of a real cluster is held against.
//
// Invariant: resident blocks × block bytes ≤ capacity. It sees a request as the servers see a
// replay: look up (all resident blocks are touched), load the leading ones (touched), save the rest
// (touched or inserted), each tail-first.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "bench/harness/byte_lru.h"

namespace ems::bench {

// Threading: one thread.
class IdealLru final {
 public:
  // `capacity_bytes` below one block holds nothing.
  IdealLru(uint64_t capacity_bytes, uint64_t block_bytes)
      : block_bytes_(block_bytes), lru_(capacity_bytes / block_bytes * block_bytes) {}

  // Runs a request; the number of its leading blocks that were resident before it.
  // Cost: O(blocks), amortised.
  size_t Request(std::span<const uint64_t> blocks);

  // Loses each resident block that `gone` says yes to, as when a server dies.
  void Lose(const std::function<bool(uint64_t block)>& gone) { lru_.EraseIf(gone); }

  uint64_t resident_blocks() const { return lru_.resident_bytes() / block_bytes_; }

 private:
  const uint64_t block_bytes_;
  ByteLru lru_;
};

}  // namespace ems::bench
