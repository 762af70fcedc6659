#pragma once
// One exact LRU over all bytes of a namespace: what a replay can reach at best with this policy,
// and what the hit rate of a real cluster is held against.
//
// Invariant: resident blocks × block bytes ≤ capacity. It sees a request as the servers see a
// replay: look up (all resident blocks are touched), load the leading ones (touched), save the rest
// (touched or inserted), each tail-first.
#include <cstddef>
#include <cstdint>
#include <list>
#include <span>
#include <unordered_map>
#include <vector>

namespace ems::bench {

// Threading: one thread.
class IdealLru final {
 public:
  // `capacity_bytes` below one block holds nothing.
  IdealLru(uint64_t capacity_bytes, uint64_t block_bytes)
      : blocks_max_(capacity_bytes / block_bytes) {}

  // Runs a request; the number of its leading blocks that were resident before it.
  // Cost: O(blocks), amortised.
  size_t Request(std::span<const uint64_t> blocks);

  uint64_t resident_blocks() const { return places_.size(); }

 private:
  using Order = std::list<uint64_t>;  // oldest first
  bool Touch(uint64_t block);
  void Insert(uint64_t block);

  const uint64_t blocks_max_;
  Order order_;
  std::unordered_map<uint64_t, Order::iterator> places_;
};

}  // namespace ems::bench
