#include "pdc/engine/internal/packed_matrix.h"

#include <algorithm>
#include <cstring>

#include "common/check.h"

namespace ems::pdc::internal {
namespace {

Element ElementOf(model::DType dtype) {
  if (dtype == model::DType::kBF16) return Element::kBf16;
  return dtype == model::DType::kI8 ? Element::kInt8 : Element::kF32;
}

size_t BytesOf(Element element) {
  if (element == Element::kF32) return sizeof(float);
  return element == Element::kBf16 ? sizeof(uint16_t) : sizeof(int8_t);
}

}  // namespace

PackedMatrix::PackedMatrix(size_t k, const std::vector<MatrixPart>& parts) : k_(k) {
  EMS_CHECK(k > 0 && !parts.empty(), "a matrix of {} parts, {} deep", parts.size(), k);
  for (const MatrixPart& part : parts) columns_ += part.columns;
  element_ = ElementOf(parts.front().dtype);
  const size_t size = BytesOf(element_);
  const size_t padded = RoundUp(columns_, kPanel);
  elements_ = model::TensorMemory(k_ * padded * size);
  std::memset(elements_.data(), 0, k_ * padded * size);
  if (element_ == Element::kInt8) scales_ = FloatBuffer(padded);
  size_t n = 0;
  for (const MatrixPart& part : parts) {
    EMS_CHECK(ElementOf(part.dtype) == element_, "parts of different types");
    EMS_CHECK((part.scales != nullptr) == (element_ == Element::kInt8), "INT8 has scales");
    for (size_t column = 0; column < part.columns; ++column, ++n) {
      std::byte* to = elements_.data() + ((n / kPanel * k_) * kPanel + n % kPanel) * size;
      const std::byte* from = part.data + column * part.column_stride * size;
      for (size_t i = 0; i < k_; ++i)
        std::memcpy(to + i * kPanel * size, from + i * part.k_stride * size, size);
      if (part.scales != nullptr)
        std::memcpy(scales_.data() + n, part.scales + column * sizeof(float), sizeof(float));
    }
  }
}

Product PackedMatrix::Times(RowsView x, size_t rows, RowsView y, size_t panel_begin,
                            size_t panel_end, float* widened) const {
  EMS_CHECK(panel_begin <= panel_end && panel_end <= panels(), "panels {} to {} of {}", panel_begin,
            panel_end, panels());
  Product product;
  product.x = x.data;
  product.x_stride = x.stride;
  product.rows = rows;
  product.k = k_;
  product.w = elements_.data();
  product.element = element_;
  product.panel_stride = k_ * kPanel;
  product.scales = element_ == Element::kInt8 ? scales_.data() : nullptr;
  product.column_begin = panel_begin * kPanel;
  product.column_end = std::min(columns_, panel_end * kPanel);
  product.y = y.data;
  product.y_stride = y.stride;
  product.widened = widened;
  return product;
}

}  // namespace ems::pdc::internal
