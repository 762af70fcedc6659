#pragma once
// The KV blocks that the simulator's pool holds: an exact LRU of block names, all of one size.
// Bound: `capacity` names. Threading: caller locks.
#include <cstddef>
#include <cstdint>
#include <list>
#include <span>
#include <unordered_map>

namespace ems::pdc {

class BlockLru final {
 public:
  // 0: nothing is ever held.
  explicit BlockLru(size_t capacity) : capacity_(capacity) {}
  // How many leading blocks are held. They are touched, the last one first, so that roots outlive
  // leaves. Cost: O(hits).
  size_t LeadingHits(std::span<const uint64_t> blocks);
  // Holds them all, as far as there is room. Cost: O(blocks).
  void Insert(std::span<const uint64_t> blocks);
  size_t size() const { return where_.size(); }

 private:
  void Touch(uint64_t block);
  const size_t capacity_;
  std::list<uint64_t> order_;  // most recent first
  std::unordered_map<uint64_t, std::list<uint64_t>::iterator> where_;
};

}  // namespace ems::pdc
