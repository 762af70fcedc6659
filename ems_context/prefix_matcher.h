#pragma once
// The length of the prefix that the pool can serve: blocks count only up to the first one that is
// missing.
#include <cstddef>
#include <vector>

#include "common/status.h"

namespace ems::context {

// The number of leading blocks that are there. An answer that failed counts as absent: a miss is
// always legal. Cost: O(result).
size_t LeadingBlocks(const std::vector<Result<bool>>& present);

// The number of leading blocks that arrived.
template <typename T>
size_t LeadingOk(const std::vector<Result<T>>& blocks) {
  size_t leading = 0;
  while (leading < blocks.size() && blocks[leading].ok()) ++leading;
  return leading;
}

}  // namespace ems::context
