// What must hold: every table computes the sums that kernel_types.h writes down, bit by bit,
// whatever the number of rows, and all tables agree.
#include "pdc/engine/internal/kernels.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <vector>

namespace ems::pdc::internal {
namespace {

std::vector<const Kernels*> Tables() {
  std::vector<const Kernels*> tables;
  for (const char* name : {"portable", "avx2", "avx512"})
    if (const Kernels* kernels = KernelsByName(name)) tables.push_back(kernels);
  return tables;
}

std::vector<float> Random(size_t count, uint64_t seed, float spread = 1) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// A product with elements of type T in panels; `value` is what an element means.
template <typename T>
void ExpectProducts(Element element, const std::function<T(float)>& store,
                    const std::function<float(T)>& value, bool scaled) {
  constexpr size_t kK = 37, kColumns = 77, kPanels = 3, kRows = 41, kYStride = 83;
  const std::vector<float> x = Random(kRows * kK, 1);
  std::vector<T> w(kPanels * kK * kPanel);
  for (size_t k = 0; k < kK; ++k)
    for (size_t n = 0; n < kColumns; ++n)
      w[(n / kPanel * kK + k) * kPanel + n % kPanel] =
          store(std::sin(static_cast<float>(k * 100 + n)) * 90);
  const std::vector<float> scales = Random(kPanels * kPanel, 2);
  std::vector<float> wanted(kRows * kYStride, 7);
  for (size_t m = 0; m < kRows; ++m) {
    for (size_t n = 0; n < kColumns; ++n) {
      float sum = 0;
      for (size_t k = 0; k < kK; ++k)
        sum = std::fma(x[m * kK + k], value(w[(n / kPanel * kK + k) * kPanel + n % kPanel]), sum);
      wanted[m * kYStride + n] = scaled ? sum * scales[n] : sum;
    }
  }
  std::vector<float> widened(kK * kPanel);
  for (const Kernels* kernels : Tables()) {
    // All rows at once, and in pieces of each size, with columns in two calls.
    for (size_t piece = 1; piece <= kRows; piece = piece < 17 ? piece + 1 : piece * 2 + 7) {
      std::vector<float> y(kRows * kYStride, 7);
      for (size_t row = 0; row < kRows; row += piece) {
        Product p;
        p.x = x.data() + row * kK;
        p.x_stride = kK;
        p.rows = std::min(piece, kRows - row);
        p.k = kK;
        p.w = w.data();
        p.element = element;
        p.panel_stride = kK * kPanel;
        p.scales = scaled ? scales.data() : nullptr;
        p.y = y.data() + row * kYStride;
        p.y_stride = kYStride;
        p.widened = widened.data();
        p.column_end = kPanel;
        kernels->multiply(p);
        p.column_begin = kPanel;
        p.column_end = kColumns;
        kernels->multiply(p);
      }
      ASSERT_TRUE(SameBits(y, wanted)) << kernels->name << " rows " << piece;
    }
  }
}

TEST(KernelsTest, ProductsAreTheWrittenSums) {
  ExpectProducts<float>(
      Element::kF32, [](float v) { return v; }, [](float v) { return v; }, false);
  ExpectProducts<uint16_t>(Element::kBf16, ToBf16, FromBf16, false);
  ExpectProducts<int8_t>(
      Element::kInt8, [](float v) { return static_cast<int8_t>(v); },
      [](int8_t v) { return static_cast<float>(v); }, true);
}

TEST(KernelsTest, Bf16RoundsToNearestEven) {
  EXPECT_EQ(FromBf16(ToBf16(1.0F)), 1.0F);
  EXPECT_EQ(FromBf16(ToBf16(-2.5F)), -2.5F);
  EXPECT_EQ(FromBf16(ToBf16(1.0F + 1.0F / 256)), 1.0F);              // a tie, down to even
  EXPECT_EQ(FromBf16(ToBf16(1.0F + 3.0F / 256)), 1.0F + 1.0F / 64);  // a tie, up to even
  EXPECT_EQ(FromBf16(ToBf16(1.0F + 1.1F / 256)), 1.0F + 1.0F / 128);
}

TEST(KernelsTest, ExpIsNearTheRealOne) {
  std::vector<float> x;
  for (float v = -86.5F; v < 88; v += 0.137F) x.push_back(v);
  for (const float v : {0.0F, -0.0F, 1e-30F, -87.5F, -1000.0F, -HUGE_VALF}) x.push_back(v);
  while (x.size() % 16 != 0) x.push_back(1);
  for (const Kernels* kernels : Tables()) {
    std::vector<float> y = x;
    kernels->exp(y.data(), y.size());
    for (size_t i = 0; i < x.size(); ++i) {
      const double wanted = x[i] < -87 ? 0 : std::exp(static_cast<double>(x[i]));
      EXPECT_NEAR(static_cast<double>(y[i]), wanted, wanted * 2.5e-7) << x[i];
    }
  }
}

TEST(KernelsTest, FunctionsOfElementsAgree) {
  const std::vector<float> x = Random(96, 3), weight = Random(96, 4);
  std::vector<std::vector<float>> all;
  for (const Kernels* kernels : Tables()) {
    std::vector<float> out(96), gate = x, sum = weight;
    kernels->rms_norm(x.data(), weight.data(), 1e-6F, 96, out.data());
    double squares = 0;
    for (const float v : x) squares += static_cast<double>(v * v);
    for (size_t i = 0; i < 96; ++i)
      EXPECT_NEAR(out[i], static_cast<double>(x[i] * weight[i]) / std::sqrt(squares / 96), 1e-5);
    kernels->silu_multiply(gate.data(), weight.data(), 96);
    for (size_t i = 0; i < 96; ++i)
      EXPECT_NEAR(gate[i], x[i] / (1 + std::exp(-x[i])) * weight[i], 1e-5);
    kernels->add_scaled(x.data(), 1, 95, sum.data());
    EXPECT_EQ(sum[0], weight[0] + x[0]);
    EXPECT_EQ(sum[95], weight[95]);
    kernels->add_scaled(x.data(), 0.3F, 93, sum.data());
    EXPECT_EQ(sum[92], std::fma(0.3F, x[92], weight[92] + x[92]));
    EXPECT_EQ(sum[93], weight[93] + x[93]);
    out.insert(out.end(), gate.begin(), gate.end());
    out.insert(out.end(), sum.begin(), sum.end());
    std::vector<uint16_t> narrow(38);
    for (size_t i = 0; i < narrow.size(); ++i) narrow[i] = ToBf16(x[i]);
    std::vector<float> wide(narrow.size());
    kernels->widen(narrow.data(), narrow.size(), wide.data());
    for (size_t i = 0; i < narrow.size(); ++i) EXPECT_EQ(wide[i], FromBf16(narrow[i]));
    all.push_back(std::move(out));
  }
  for (const auto& other : all) EXPECT_TRUE(SameBits(other, all[0]));
}

TEST(KernelsTest, ATileIsTransposed) {
  const std::vector<float> rows = Random(kKeyTile * 21, 5);
  for (const Kernels* kernels : Tables()) {
    for (const size_t dim : {size_t{6}, size_t{16}, size_t{20}}) {
      std::vector<float> columns(dim * kKeyTile);
      kernels->transpose_tile(rows.data(), 21, dim, columns.data());
      for (size_t d = 0; d < dim; ++d)
        for (size_t j = 0; j < kKeyTile; ++j)
          ASSERT_EQ(columns[d * kKeyTile + j], rows[j * 21 + d]);
    }
  }
}

// Two tiles, the second seen in part: near a softmax in doubles, equal for all tables and rows.
TEST(KernelsTest, AttentionIsASoftmaxOverWhatIsSeen) {
  constexpr size_t kDim = 24, kWide = 32, kRows = 19, kKeys = kKeyTile + 23;
  const std::vector<float> queries = Random(kRows * kDim, 6),
                           values = Random(2 * kKeyTile * kWide, 8);
  const std::vector<float> keys = Random(2 * kDim * kKeyTile, 7);
  const auto run = [&](const Kernels& kernels, size_t first, size_t rows) {
    std::vector<float> output(rows * kWide), state(rows * kAttendState), scores(rows * kKeyTile);
    for (size_t i = 0; i < rows; ++i)
      state[i * kAttendState] = -std::numeric_limits<float>::infinity();
    for (size_t tile = 0; tile < 2; ++tile) {
      AttendTile t;
      t.queries = queries.data() + first * kDim;
      t.query_stride = t.dim = kDim;
      t.rows = rows;
      t.keys = keys.data() + tile * kDim * kKeyTile;
      t.values = values.data() + tile * kKeyTile * kWide;
      t.value_stride = t.output_stride = kWide;
      t.valid = tile == 0 ? kKeyTile : kKeys - kKeyTile;
      t.scores = scores.data();
      t.output = output.data();
      t.state = state.data();
      kernels.attend(t);
    }
    for (size_t i = 0; i < rows; ++i)
      for (size_t d = 0; d < kWide; ++d)
        output[i * kWide + d] /= kernels.attended(state.data() + i * kAttendState);
    return output;
  };
  const std::vector<float> whole = run(*KernelsByName("portable"), 0, kRows);
  for (size_t row = 0; row < kRows; ++row) {
    std::vector<double> sums(kWide);
    double sum = 0;
    for (size_t j = 0; j < kKeys; ++j) {
      double score = 0;
      for (size_t d = 0; d < kDim; ++d)
        score += static_cast<double>(queries[row * kDim + d]) *
                 static_cast<double>(keys[(j / kKeyTile * kDim + d) * kKeyTile + j % kKeyTile]);
      sum += std::exp(score);
      for (size_t d = 0; d < kWide; ++d)
        sums[d] += std::exp(score) * static_cast<double>(values[j * kWide + d]);
    }
    for (size_t d = 0; d < kWide; ++d)
      EXPECT_NEAR(static_cast<double>(whole[row * kWide + d]), sums[d] / sum, 2e-5);
  }
  for (const Kernels* kernels : Tables()) {
    EXPECT_TRUE(SameBits(run(*kernels, 0, kRows), whole)) << kernels->name;
    for (size_t row = 0; row < kRows; ++row)
      EXPECT_TRUE(SameBits(run(*kernels, row, 1),
                           {whole.begin() + static_cast<std::ptrdiff_t>(row * kWide),
                            whole.begin() + static_cast<std::ptrdiff_t>((row + 1) * kWide)}));
  }
}

TEST(KernelsTest, TablesAreFoundByName) {
  EXPECT_EQ(KernelsByName("abacus"), nullptr);
  EXPECT_STREQ(KernelsByName("portable")->name, "portable");
  EXPECT_EQ(KernelsByName(BestKernels().name), &BestKernels());
}

}  // namespace
}  // namespace ems::pdc::internal
