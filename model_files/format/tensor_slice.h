#pragma once
// The shard of a tensor that one rank of tensor parallelism loads: a slice along one axis, as byte
// ranges.
#include <cstdint>
#include <optional>
#include <vector>

#include "common/check.h"
#include "common/status.h"
#include "model_files/format/tensor_table.h"

namespace ems::model {

// Elements [begin, end) of an axis.
struct AxisRange {
  uint64_t begin = 0;
  uint64_t end = 0;
};

struct SliceSpec {
  uint32_t axis = 0;  // of TensorInfo::shape: 0 is the outermost
  uint32_t rank = 0;  // 0 .. ranks - 1
  uint32_t ranks = 1;
  std::optional<AxisRange> range{};  // these elements, whatever the ranks
};

struct SliceRange {
  uint64_t offset = 0;  // from the tensor's first byte
  uint64_t bytes = 0;
  uint64_t destination = 0;  // from the slice's first byte
  friend bool operator==(const SliceRange&, const SliceRange&) = default;
};

// A slice along one axis lies in the tensor as runs of equal length at equal distance, so it is
// described rather than listed: a matrix cut by columns has a range a row. Adjacent runs are
// joined: axis 0, or one rank, is one range.
struct TensorSlice {
  std::vector<uint64_t> shape;  // of the slice, row-major
  uint64_t bytes = 0;           // of the slice, dense; 0: no ranges
  uint64_t ranges = 0;
  uint64_t first_offset = 0;  // of the first range, from the tensor's first byte
  uint64_t range_bytes = 0;
  uint64_t stride_bytes = 0;  // from one range to the next, in the tensor

  // Range `i` of 0 .. ranges - 1, in the order of offset and destination alike.
  SliceRange Range(uint64_t i) const {
    EMS_CHECK(i < ranges);
    return {.offset = first_offset + i * stride_bytes,
            .bytes = range_bytes,
            .destination = i * range_bytes};
  }
};

// Slice `spec.rank` of `spec.ranks` equal ones, or `spec.range` of the axis. Concatenated along the
// axis in the order of ranks the slices are the tensor. Errors: kInvalidArgument  no such axis,
// rank or range; the axis cannot be divided by the ranks; the cut would go through a block of a
// quantised (or sub-byte) type; `tensor` has another size than its shape
// Cost: O(dimensions).
Result<TensorSlice> SliceTensor(const TensorInfo& tensor, const SliceSpec& spec);

}  // namespace ems::model
