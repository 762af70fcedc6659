#include "bench/trace/ideal_lru.h"

#include <vector>

namespace ems::bench {

size_t IdealLru::Request(std::span<const uint64_t> blocks) {
  // Look up, tail-first: `leading` ends as the place of the first block that is absent.
  size_t leading = blocks.size();
  for (size_t i = blocks.size(); i-- > 0;)
    if (!lru_.Touch(blocks[i])) leading = i;
  for (size_t i = leading; i-- > 0;) lru_.Touch(blocks[i]);
  std::vector<uint64_t> absent;  // tail-first
  for (size_t i = blocks.size(); i-- > leading;)
    if (!lru_.Touch(blocks[i])) absent.push_back(blocks[i]);
  for (const uint64_t block : absent) lru_.Insert(block, block_bytes_);
  return leading;
}

}  // namespace ems::bench
