// What must hold: a packed matrix multiplies as the parts it was made of, in any type and from
// either side.
#include "pdc/engine/internal/packed_matrix.h"

#include <gtest/gtest.h>

#include <cstring>

namespace ems::pdc::internal {
namespace {

// y of one row of ones and twos.
std::vector<float> Times(const PackedMatrix& matrix) {
  std::vector<float> x(matrix.k()), y(matrix.columns()), widened(matrix.k() * kPanel);
  for (size_t i = 0; i < x.size(); ++i) x[i] = 1.0F + static_cast<float>(i % 2);
  BestKernels().multiply(matrix.Times({x.data(), x.size()}, 1, {y.data(), y.size()}, 0,
                                      matrix.panels(), widened.data()));
  return y;
}

template <typename T>
std::vector<std::byte> Bytes(const std::vector<T>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(T) + 1);  // odd, so never aligned
  std::memcpy(bytes.data() + 1, values.data(), values.size() * sizeof(T));
  return bytes;
}

TEST(PackedMatrixTest, PartsStandSideBySide) {
  const auto one = Bytes<float>({1, 2, 3, 4, 5, 6}), two = Bytes<float>({10, 20, 30});
  const PackedMatrix matrix(3, {{.data = one.data() + 1, .columns = 2, .column_stride = 3},
                                {.data = two.data() + 1, .columns = 1, .column_stride = 3}});
  EXPECT_EQ(matrix.k(), 3U);
  EXPECT_EQ(matrix.columns(), 3U);
  EXPECT_EQ(Times(matrix), (std::vector<float>{1 + 4 + 3, 4 + 10 + 6, 10 + 40 + 30}));
}

TEST(PackedMatrixTest, IsReadFromTheOtherSide) {
  const auto rows =
      Bytes<uint16_t>({ToBf16(1), ToBf16(2), ToBf16(3), ToBf16(4), ToBf16(5), ToBf16(6)});
  const PackedMatrix matrix(2, {{.data = rows.data() + 1,
                                 .dtype = model::DType::kBF16,
                                 .columns = 3,
                                 .k_stride = 3,
                                 .column_stride = 1}});
  EXPECT_EQ(Times(matrix), (std::vector<float>{1 + 8, 2 + 10, 3 + 12}));
}

TEST(PackedMatrixTest, Int8IsScaledByChannel) {
  const auto rows = Bytes<int8_t>({1, -2, 127, -127});
  const auto scales = Bytes<float>({0.5F, 2.0F});
  const PackedMatrix matrix(2, {{.data = rows.data() + 1,
                                 .dtype = model::DType::kI8,
                                 .columns = 2,
                                 .column_stride = 2,
                                 .scales = scales.data() + 1}});
  EXPECT_EQ(Times(matrix), (std::vector<float>{-1.5F, -254.0F}));
}

}  // namespace
}  // namespace ems::pdc::internal
