#pragma once
// Floats for kernels: 64-byte aligned, rows apart by a stride that does not fall on the same cache
// sets again and again.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>

#include "common/bytes.h"
#include "ems_model/tensor_stream.h"
#include "pdc/engine/internal/kernel_types.h"

namespace ems::pdc::internal {

// Whole panels, and a line more: strides of powers of two would meet in a few sets of the cache.
inline size_t StrideFor(size_t columns) { return RoundUp(columns, kPanel) + kLaneSums; }

// Move-only; zeros at first.
class FloatBuffer final {
 public:
  FloatBuffer() = default;
  explicit FloatBuffer(size_t floats) : memory_(floats * sizeof(float)), floats_(floats) {
    std::memset(memory_.data(), 0, floats * sizeof(float));
  }
  float* data() const { return reinterpret_cast<float*>(memory_.data()); }
  size_t size() const { return floats_; }

 private:
  model::TensorMemory memory_;
  size_t floats_ = 0;
};

// Borrowed rows of floats, `stride` apart.
struct RowsView {
  float* data = nullptr;
  size_t stride = 0;
  float* row(size_t i) const { return data + i * stride; }
};

// [rows][columns] with a stride.
class FloatRows final {
 public:
  FloatRows() = default;
  FloatRows(size_t rows, size_t columns)
      : stride_(StrideFor(columns)), buffer_(rows * StrideFor(columns)) {}
  float* row(size_t i) const { return buffer_.data() + i * stride_; }
  size_t stride() const { return stride_; }
  RowsView from(size_t i) const { return {row(i), stride_}; }
  operator RowsView() const { return from(0); }

 private:
  size_t stride_ = 0;
  FloatBuffer buffer_;
};

}  // namespace ems::pdc::internal
