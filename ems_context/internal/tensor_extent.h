#pragma once
// The bytes that a strided tensor covers, and tests for bytes that two tensors, or two elements of
// one, share.
#include <array>
#include <cstddef>
#include <cstdint>

#include "common/status.h"
#include "ems_context/kv_tensor.h"

namespace ems::context {

// A run of `leaf_bytes` repeated over three strides, the widest first.
struct TensorExtent {
  struct Dimension {
    uint64_t count = 1;
    uint64_t stride = 0;
  };
  uint64_t start = 0;  // address
  uint64_t leaf_bytes = 0;
  std::array<Dimension, 3> dimensions;
  std::array<uint64_t, 4> bytes;  // from the first byte to the last: of all, …, of a leaf
};

// Bytes of one head of one token; of one token.
uint64_t HeadBytes(const KvTensor& tensor);
uint64_t TokenBytes(const KvTensor& tensor);

// Fills strides that are 0. Those too large for 64 bits become UINT64_MAX.
void FillStrides(KvTensor* tensor);

// Errors: kInvalidArgument  elements that share a byte, or end behind tensor.bytes. Strides must
// nest: each at least as wide as everything within the next smaller one.
Result<TensorExtent> ExtentOf(const KvTensor& tensor);

// Does any byte belong to both? Exact where it can be found within a million steps, which all
// tensors with equal strides take a few of; true beyond that.
bool ShareAByte(const TensorExtent& a, const TensorExtent& b);

}  // namespace ems::context
