#pragma once
// Checks of one table of kernels against exact results: whole numbers, of which sums of floats are
// exact in any order, vectors of equal elements, one key alone. kernels_test.cc checks that all
// tables give the same bits.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "pdc/engine/internal/kernels.h"

namespace ems::pdc::internal {

// `lanes`: floats of a register; `rows_max`: rows of the largest tile.
class KernelTableTest : public ::testing::Test {
 protected:
  KernelTableTest(const char* name, size_t lanes, size_t rows_max)
      : name_(name), lanes_(lanes), rows_max_(rows_max), table_(KernelsByName(name)) {}
  void SetUp() override {
    if (table_ == nullptr) GTEST_SKIP() << "this processor has no " << name_;
  }

  void ExpectRegistersOfItsWidth() {
    EXPECT_STREQ(table_->name, name_);
    float sink = 0;
    EXPECT_EQ(table_->peak(10, &sink), 10 * 12 * lanes_ * 2);
    EXPECT_GT(sink, 0);
  }

  // Tiles of each number of rows and columns, with what is beyond them left as it was.
  void ExpectExactProducts() {
    constexpr size_t kK = 19, kColumnsMax = 3 * kPanel;
    std::vector<float> w(kColumnsMax * kK);
    std::vector<uint16_t> narrow(w.size());
    const auto weight = [](size_t k, size_t n) {
      return static_cast<int64_t>((k * 31 + n * 17) % 23) - 11;
    };
    for (size_t i = 0; i < w.size(); ++i) {
      const size_t n = i / (kK * kPanel) * kPanel + i % kPanel;
      w[i] = static_cast<float>(weight(i / kPanel % kK, n));
      narrow[i] = ToBf16(w[i]);
    }
    std::vector<float> widened(kK * kPanel);
    for (size_t rows = 1; rows <= 2 * rows_max_ + 1; ++rows) {
      for (const size_t columns : {size_t{1}, lanes_, lanes_ + 1, kPanel + 7, kColumnsMax}) {
        std::vector<float> x(rows * kK);
        for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 13) - 6;
        for (const bool bf16 : {false, true}) {
          std::vector<float> y(rows * (columns + 3), 0.5F);
          Product p;
          p.x = x.data();
          p.x_stride = p.k = kK;
          p.rows = rows;
          p.w = bf16 ? static_cast<const void*>(narrow.data()) : w.data();
          p.element = bf16 ? Element::kBf16 : Element::kF32;
          p.panel_stride = kK * kPanel;
          p.column_end = columns;
          p.y = y.data();
          p.y_stride = columns + 3;
          p.widened = widened.data();
          table_->multiply(p);
          for (size_t i = 0; i < y.size(); ++i) {
            const size_t row = i / (columns + 3), n = i % (columns + 3);
            int64_t sum = 0;
            for (size_t k = 0; k < kK; ++k)
              sum += (static_cast<int64_t>((row * kK + k) % 13) - 6) * weight(k, n);
            ASSERT_EQ(y[i], n < columns ? static_cast<float>(sum) : 0.5F)
                << rows << " rows, " << columns << " columns, at " << i;
          }
        }
      }
    }
  }

  // Lengths around the register's: no element is left out, none behind the last is touched.
  void ExpectWholeTails() {
    for (size_t n = 1; n <= 2 * lanes_ + 1; ++n) {
      std::vector<float> x(n + 4), sum(n + 4, 1), scaled(n + 4, 1), wide(n + 4, 1);
      std::vector<uint16_t> narrow(n + 4);
      for (size_t i = 0; i < x.size(); ++i) {
        x[i] = static_cast<float>(i + 2);
        narrow[i] = ToBf16(x[i]);
      }
      table_->add_scaled(x.data(), 1, n, sum.data());
      table_->add_scaled(x.data(), 3, n, scaled.data());
      table_->widen(narrow.data(), n / 2 * 2, wide.data());
      for (size_t i = 0; i < x.size(); ++i) {
        ASSERT_EQ(sum[i], i < n ? x[i] + 1 : 1) << n;
        ASSERT_EQ(scaled[i], i < n ? 3 * x[i] + 1 : 1) << n;
        ASSERT_EQ(wide[i], i < n / 2 * 2 ? x[i] : 1) << n;
      }
    }
  }

  void ExpectTransposedOfAnyWidth() {
    for (size_t dim = 1; dim <= 2 * lanes_ + 1; ++dim) {
      std::vector<float> rows(kKeyTile * dim), columns(dim * kKeyTile, -1);
      for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<float>(i);
      table_->transpose_tile(rows.data(), dim, dim, columns.data());
      for (size_t i = 0; i < rows.size(); ++i)
        ASSERT_EQ(columns[i % dim * kKeyTile + i / dim], rows[i]) << dim;
    }
  }

  void ExpectExactElements() {
    // Four ones and twelve zeros: a mean of squares of 1/4.
    std::vector<float> x(2 * kLaneSums), weight(2 * kLaneSums, 3), y(2 * kLaneSums);
    for (size_t i = 0; i < x.size(); i += 4) x[i] = 1;
    table_->rms_norm(x.data(), weight.data(), 0, x.size(), y.data());
    for (size_t i = 0; i < x.size(); ++i) EXPECT_EQ(y[i], i % 4 == 0 ? 6 : 0);
    std::vector<float> powers(kLaneSums);
    powers[3] = -1000;
    table_->exp(powers.data(), powers.size());
    for (size_t i = 0; i < powers.size(); ++i) EXPECT_EQ(powers[i], i == 3 ? 0 : 1);
    std::vector<float> gate(kLaneSums, 0), up(kLaneSums, 5);
    gate[1] = 40;  // sigmoid(40) is 1 in single precision
    table_->silu_multiply(gate.data(), up.data(), gate.size());
    for (size_t i = 0; i < gate.size(); ++i) EXPECT_EQ(gate[i], i == 1 ? 200 : 0);
  }

  // One key gets all the weight; of two equal ones each gets half.
  void ExpectExactAttention() {
    constexpr size_t kDim = 16, kRows = 5;
    std::vector<float> queries(kRows * kDim, 0.25F), keys(kDim * kKeyTile, 1),
        values(kKeyTile * kPanel);
    for (size_t j = 0; j < kKeyTile; ++j)
      for (size_t d = 0; d < kPanel; ++d)
        values[j * kPanel + d] = static_cast<float>((j + 1) * (d + 1));
    for (const size_t valid : {size_t{1}, size_t{2}}) {
      std::vector<float> scores(kRows * kKeyTile), output(kRows * kPanel),
          state(kRows * kAttendState);
      for (size_t row = 0; row < kRows; ++row)
        state[row * kAttendState] = -std::numeric_limits<float>::infinity();
      AttendTile tile;
      tile.queries = queries.data();
      tile.query_stride = tile.dim = kDim;
      tile.rows = kRows;
      tile.keys = keys.data();
      tile.values = values.data();
      tile.value_stride = tile.output_stride = kPanel;
      tile.valid = valid;
      tile.scores = scores.data();
      tile.output = output.data();
      tile.state = state.data();
      table_->attend(tile);
      for (size_t i = 0; i < output.size(); ++i) {
        const float sum = table_->attended(state.data() + i / kPanel * kAttendState);
        EXPECT_EQ(sum, static_cast<float>(valid));
        const auto d = static_cast<float>(i % kPanel + 1);
        EXPECT_EQ(output[i] / sum, valid == 1 ? d : d * 1.5F);
      }
    }
  }

 private:
  const char* const name_;
  const size_t lanes_, rows_max_;
  const Kernels* const table_;  // null: not on this processor
};

}  // namespace ems::pdc::internal
