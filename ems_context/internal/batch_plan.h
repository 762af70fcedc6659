#pragma once
// Cuts one call into batches, so that no frame and no memory grows with the length of a prompt.
//
// Invariant: the ranges are in order, without gaps, and cover all items; none is empty.
// Bound: each batch within both limits, unless a single item is larger than the byte limit: that
// one travels alone.
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/bytes.h"

namespace ems::context {

struct BatchLimits {
  uint64_t bytes_max = 256 * kMiB;
  size_t items_max = 16384;
};

// Items [begin, end) of a call.
struct BatchRange {
  size_t begin = 0;
  size_t end = 0;
  size_t size() const { return end - begin; }
  friend bool operator==(const BatchRange&, const BatchRange&) = default;
};

// Shape: `item_bytes` is [items]. Cost: O(items).
std::vector<BatchRange> PlanBatches(std::span<const uint64_t> item_bytes,
                                    const BatchLimits& limits);

}  // namespace ems::context
