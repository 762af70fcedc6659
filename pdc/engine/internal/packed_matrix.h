#pragma once
// A weight matrix as kernels read it: panels of 32 columns, k after k.
#include <cstddef>
#include <vector>

#include "ems_model/tensor_stream.h"
#include "model_files/format/tensor_table.h"
#include "pdc/engine/internal/float_buffer.h"
#include "pdc/engine/internal/kernel_types.h"

namespace ems::pdc::internal {

// Some columns of a matrix, wherever they lie. Element (k, n) is element k * k_stride + n *
// column_stride of `data`, which is aligned to nothing.
struct MatrixPart {
  const std::byte* data = nullptr;
  model::DType dtype = model::DType::kF32;  // F32, BF16 or I8
  size_t columns = 0;
  size_t k_stride = 1;
  size_t column_stride = 1;
  const std::byte* scales = nullptr;  // of I8: F32 [columns]
};

// Threading: immutable. Move-only.
class PackedMatrix final {
 public:
  PackedMatrix() = default;
  // The parts' columns one after the other; all parts are of one type.
  PackedMatrix(size_t k, const std::vector<MatrixPart>& parts);

  size_t k() const { return k_; }
  size_t columns() const { return columns_; }
  bool empty() const { return columns_ == 0; }
  size_t panels() const { return (columns_ + kPanel - 1) / kPanel; }

  // The product of `rows` rows with columns of panels [panel_begin, panel_end); `widened`: room for
  // [k][32].
  Product Times(RowsView x, size_t rows, RowsView y, size_t panel_begin, size_t panel_end,
                float* widened) const;

 private:
  size_t k_ = 0, columns_ = 0;
  Element element_ = Element::kF32;
  model::TensorMemory elements_;
  FloatBuffer scales_;
};

}  // namespace ems::pdc::internal
