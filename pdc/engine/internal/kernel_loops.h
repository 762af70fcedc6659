#pragma once
// The loops behind the tables of kernel_types.h, for any width of registers (kernel_vectors.h).
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "pdc/engine/internal/kernel_vectors.h"

namespace ems::pdc::internal {

template <class S>
struct Loops : Vectors<S> {
  using V = Vectors<S>;
  using typename V::F, typename V::I;
  using V::All, V::kLanes, V::kPerPanel, V::Load, V::Max, V::Min, V::Store;

  // --- Products

  // R rows × C vectors of columns: the only place where products are summed.
  template <int R, int C, class W>
  static void Tile(const Product& p, const float* x, const W* const (&w)[C], F (&sums)[R][C]) {
    const size_t x_stride = p.x_stride, k_stride = p.k_stride;
    for (size_t k = 0; k < p.k; ++k) {
      F b[C];
      EMS_UNROLL
      for (int c = 0; c < C; ++c) b[c] = Load(w[c] + k * k_stride);
      EMS_UNROLL
      for (int r = 0; r < R; ++r) {
        const F a = All(x[static_cast<size_t>(r) * x_stride + k]);
        EMS_UNROLL
        for (int c = 0; c < C; ++c) sums[r][c] = S::Fma(a, b[c], sums[r][c]);
      }
    }
  }

  static void StoreSome(F value, size_t count, float* to) {
    float all[kLanes];
    Store(value, all);
    for (size_t i = 0; i < count; ++i) to[i] = all[i];
  }

  template <int R, int C, class W>
  static void TileAt(const Product& p, size_t row, size_t vector) {
    const W* w[C];
    EMS_UNROLL
    for (int c = 0; c < C; ++c) {
      const size_t v = vector + static_cast<size_t>(c);
      w[c] = static_cast<const W*>(p.w) + v / kPerPanel * p.panel_stride + v % kPerPanel * kLanes;
    }
    const float* x = p.x + row * p.x_stride;
    float* y = p.y + row * p.y_stride + vector * kLanes;
    F sums[R][C];
    EMS_UNROLL
    for (int r = 0; r < R; ++r) {
      EMS_UNROLL
      for (int c = 0; c < C; ++c) {
        const float* at = y + static_cast<size_t>(r) * p.y_stride + static_cast<size_t>(c) * kLanes;
        sums[r][c] = p.add ? Load(at) : F{};
      }
    }
    Tile<R, C, W>(p, x, w, sums);
    EMS_UNROLL
    for (int c = 0; c < C; ++c) {
      const size_t column = (vector + static_cast<size_t>(c)) * kLanes;
      const F scale = p.scales != nullptr ? Load(p.scales + column) : All(1.0F);
      EMS_UNROLL
      for (int r = 0; r < R; ++r) {
        float* at = y + static_cast<size_t>(r) * p.y_stride + static_cast<size_t>(c) * kLanes;
        const F result = p.scales != nullptr ? sums[r][c] * scale : sums[r][c];
        if (p.add || column + kLanes <= p.column_end) {
          Store(result, at);
        } else if (column < p.column_end) {
          StoreSome(result, p.column_end - column, at);
        }
      }
    }
  }

  // `vectors` from `vector` on, as many at a time as registers allow.
  template <int R, class W>
  static void Rows(const Product& p, size_t row, size_t vector, size_t vectors) {
    constexpr int kMost = R == 1 ? 8 : R == 2 ? S::kColumnsOfTwo : R <= 4 ? S::kColumnsOfFour : 2;
    const size_t end = vector + vectors;
    if constexpr (kMost >= 8)
      for (; vector + 8 <= end; vector += 8) TileAt<R, 8, W>(p, row, vector);
    if constexpr (kMost >= 4)
      for (; vector + 4 <= end; vector += 4) TileAt<R, 4, W>(p, row, vector);
    for (; vector + 2 <= end; vector += 2) TileAt<R, 2, W>(p, row, vector);
  }

  template <class W>
  static void AllRows(const Product& p, size_t vector, size_t vectors) {
    size_t row = 0;
    for (; row + S::kRowsMax <= p.rows; row += S::kRowsMax)
      Rows<S::kRowsMax, W>(p, row, vector, vectors);
    if constexpr (S::kRowsMax > 8)
      for (; row + 8 <= p.rows; row += 8) Rows<8, W>(p, row, vector, vectors);
    for (; row + 4 <= p.rows; row += 4) Rows<4, W>(p, row, vector, vectors);
    for (; row + 2 <= p.rows; row += 2) Rows<2, W>(p, row, vector, vectors);
    for (; row < p.rows; ++row) Rows<1, W>(p, row, vector, vectors);
  }

  // Panels are widened once where that pays, which changes no bit.
  template <class W>
  static void Panels(const Product& p) {
    const size_t begin = p.column_begin / kLanes;
    const size_t end = (p.column_end + kPanel - 1) / kPanel * kPerPanel;
    if (p.rows < kWidenRows || (std::is_same_v<W, float> && p.k_stride != kPanel)) {
      if (p.rows <= S::kRowsMax) return AllRows<W>(p, begin, end - begin);
      for (size_t v = begin; v < end; v += kPerPanel) AllRows<W>(p, v, kPerPanel);
      return;
    }
    for (size_t v = begin; v < end; v += kPerPanel) {
      if constexpr (std::is_same_v<W, float>) {
        AllRows<float>(p, v, kPerPanel);
      } else {
        const W* panel = static_cast<const W*>(p.w) + v / kPerPanel * p.panel_stride;
        for (size_t k = 0; k < p.k; ++k) {
          EMS_UNROLL
          for (size_t i = 0; i < kPerPanel; ++i)
            Store(Load(panel + k * p.k_stride + i * kLanes), p.widened + k * kPanel + i * kLanes);
        }
        Product one = p;
        one.w = p.widened - v / kPerPanel * p.k * kPanel;
        one.k_stride = kPanel;
        one.panel_stride = p.k * kPanel;
        AllRows<float>(one, v, kPerPanel);
      }
    }
  }
  static constexpr size_t kWidenRows = 16;

  static void Multiply(const Product& p) {
    switch (p.element) {
      case Element::kF32:
        return Panels<float>(p);
      case Element::kBf16:
        return Panels<uint16_t>(p);
      case Element::kInt8:
        return Panels<int8_t>(p);
    }
  }

  // --- Functions of elements

  // 2^n * P(r) with x = n ln 2 + r; within 1.5 ulp. x is held to -87 … 88; below, the result is 0.
  static F Exp(F x) {
    const F held = Min(Max(x, All(-87.0F)), All(88.0F));
    const F magic = All(12582912.0F);  // 1.5 * 2^23: adding it rounds to a whole number
    const F shifted = S::Fma(held, All(1.44269504F), magic);
    const F n = shifted - magic;
    F r = S::Fma(n, All(-0.693359375F), held);
    r = S::Fma(n, All(2.12194440e-4F), r);
    F poly = All(1.9875691500e-4F);
    poly = S::Fma(poly, r, All(1.3981999507e-3F));
    poly = S::Fma(poly, r, All(8.3334519073e-3F));
    poly = S::Fma(poly, r, All(4.1665795894e-2F));
    poly = S::Fma(poly, r, All(1.6666665459e-1F));
    poly = S::Fma(poly, r, All(5.0000001201e-1F));
    const F result = S::Fma(poly, r * r, r) + All(1.0F);
    const I power = (reinterpret_cast<I>(shifted) - reinterpret_cast<I>(magic) + 127) << 23;
    const F scaled = result * reinterpret_cast<F>(power);
    return x < All(-87.0F) ? F{} : scaled;
  }

  static void ExpAll(float* x, size_t n) {
    for (size_t i = 0; i < n; i += kLanes) Store(Exp(Load(x + i)), x + i);
  }

  // 16 sums to one, as a tree.
  static float Tree(const float* sums) {
    float level[kLaneSums];
    for (size_t i = 0; i < kLaneSums; ++i) level[i] = sums[i];
    for (size_t width = kLaneSums / 2; width > 0; width /= 2)
      for (size_t i = 0; i < width; ++i) level[i] += level[i + width];
    return level[0];
  }

  static void RmsNorm(const float* x, const float* weight, float epsilon, size_t n, float* y) {
    constexpr size_t kParts = kLaneSums / kLanes;
    F parts[kParts] = {};
    for (size_t i = 0; i < n; i += kLaneSums) {
      for (size_t part = 0; part < kParts; ++part) {
        const F v = Load(x + i + part * kLanes);
        parts[part] = S::Fma(v, v, parts[part]);
      }
    }
    float sums[kLaneSums];
    for (size_t part = 0; part < kParts; ++part) Store(parts[part], sums + part * kLanes);
    const float mean = Tree(sums) / static_cast<float>(n);
    const F scale = All(1.0F / __builtin_sqrtf(mean + epsilon));
    for (size_t i = 0; i < n; i += kLanes) Store(Load(x + i) * scale * Load(weight + i), y + i);
  }

  static void SiluMultiply(float* gate, const float* up, size_t n) {
    for (size_t i = 0; i < n; i += kLanes) {
      const F g = Load(gate + i);
      Store(g / (Exp(-g) + All(1.0F)) * Load(up + i), gate + i);
    }
  }

  static void AddScaled(const float* x, float a, size_t n, float* y) {
    size_t i = 0;
    for (; i + kLanes <= n; i += kLanes) Store(S::Fma(All(a), Load(x + i), Load(y + i)), y + i);
    for (; i < n; ++i) y[i] = __builtin_fmaf(a, x[i], y[i]);
  }

  static void Widen(const uint16_t* from, size_t n, float* y) {
    size_t i = 0;
    for (; i + kLanes <= n; i += kLanes) Store(Load(from + i), y + i);
    for (; i < n; ++i) y[i] = __builtin_bit_cast(float, uint32_t{from[i]} << 16);
  }

  // A square of registers: each round is a perfect shuffle, and as many as an element's number has
  // bits swap rows with columns.
  static void TransposeSquare(const float* rows, size_t stride, float* columns) {
    F square[kLanes], shuffled[kLanes];
    EMS_UNROLL
    for (size_t i = 0; i < kLanes; ++i) square[i] = Load(rows + i * stride);
    for (size_t round = 1; round < kLanes; round *= 2) {
      EMS_UNROLL
      for (size_t i = 0; i < kLanes / 2; ++i) {
        shuffled[2 * i] = S::ZipLow(square[i], square[i + kLanes / 2]);
        shuffled[2 * i + 1] = S::ZipHigh(square[i], square[i + kLanes / 2]);
      }
      EMS_UNROLL
      for (size_t i = 0; i < kLanes; ++i) square[i] = shuffled[i];
    }
    EMS_UNROLL
    for (size_t i = 0; i < kLanes; ++i) Store(square[i], columns + i * kKeyTile);
  }

  static void TransposeTile(const float* rows, size_t stride, size_t dim, float* columns) {
    size_t done = 0;
    for (; done + kLanes <= dim; done += kLanes)
      for (size_t j = 0; j < kKeyTile; j += kLanes)
        TransposeSquare(rows + j * stride + done, stride, columns + done * kKeyTile + j);
    for (size_t d = done; d < dim; ++d)
      for (size_t j = 0; j < kKeyTile; ++j) columns[d * kKeyTile + j] = rows[j * stride + d];
  }

  // --- Attention

  // Scores of one row → weights; its state and output follow the new largest score.
  static void SoftmaxRow(const AttendTile& t, float* scores, float* state, float* output) {
    for (size_t j = t.valid; j < kKeyTile; ++j) scores[j] = -__builtin_inff();
    F most = Load(scores);
    for (size_t j = kLanes; j < kKeyTile; j += kLanes) most = Max(most, Load(scores + j));
    float lanes[kLanes];
    Store(most, lanes);
    float largest = state[0];
    for (const float lane : lanes) largest = lane > largest ? lane : largest;
    const F shrink = Exp(All(state[0] - largest));
    for (size_t part = 0; part < kLaneSums; part += kLanes) {
      F sum = Load(state + 1 + part) * shrink;
      for (size_t j = part; j < kKeyTile; j += kLaneSums) {
        const F weight = Exp(Load(scores + j) - All(largest));
        Store(weight, scores + j);
        sum = sum + weight;
      }
      Store(sum, state + 1 + part);
    }
    if (state[0] != largest)
      for (size_t i = 0; i < t.value_stride; i += kLanes)
        Store(Load(output + i) * shrink, output + i);
    state[0] = largest;
  }

  static void Attend(const AttendTile& t) {
    Product scores;
    scores.x = t.queries;
    scores.x_stride = t.query_stride;
    scores.rows = t.rows;
    scores.k = t.dim;
    scores.w = t.keys;
    scores.k_stride = kKeyTile;
    scores.panel_stride = kPanel;
    scores.column_end = kKeyTile;
    scores.y = t.scores;
    scores.y_stride = kKeyTile;
    Multiply(scores);
    for (size_t row = 0; row < t.rows; ++row)
      SoftmaxRow(t, t.scores + row * kKeyTile, t.state + row * kAttendState,
                 t.output + row * t.output_stride);
    Product sums;
    sums.x = t.scores;
    sums.x_stride = kKeyTile;
    sums.rows = t.rows;
    sums.k = t.valid;
    sums.w = t.values;
    sums.k_stride = t.value_stride;
    sums.panel_stride = kPanel;
    sums.column_end = t.value_stride;
    sums.y = t.output;
    sums.y_stride = t.output_stride;
    sums.add = true;
    Multiply(sums);
  }

  static uint64_t Peak(uint64_t loops, float* sink) {
    constexpr int kChains = 12;
    F sums[kChains];
    for (int i = 0; i < kChains; ++i) sums[i] = All(static_cast<float>(i));
    const F a = All(0.999F), b = All(0.001F);
    for (uint64_t i = 0; i < loops; ++i) {
      EMS_UNROLL
      for (int c = 0; c < kChains; ++c) sums[c] = S::Fma(sums[c], a, b);
    }
    float lanes[kLanes];
    for (int i = 1; i < kChains; ++i) sums[0] = sums[0] + sums[i];
    Store(sums[0], lanes);
    *sink += lanes[0];
    return loops * kChains * kLanes * 2;
  }

  static constexpr Kernels Table(const char* name) {
    return {name,   Multiply,  Attend, SumOfState,    RmsNorm, SiluMultiply,
            ExpAll, AddScaled, Widen,  TransposeTile, Peak};
  }
  static float SumOfState(const float* state) { return Tree(state + 1); }
};

}  // namespace ems::pdc::internal
