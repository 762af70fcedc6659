#pragma once
// The arithmetic of the engine, as a table of functions for each instruction set.
//
// Invariant, which all of "bit-identical" stands on: each result is one fixed sequence of IEEE
// single-precision operations, written down here, and depends on nothing else: not on how many rows
// a call has, how columns are shared out over calls and threads, or how wide the registers are. So
// all tables give the same bits, too.
//   product     y[m][n] = s; s = 0, then s = fma(x[m][k], w[k][n], s) for k = 0, 1, …
//   sum of n    16 partial sums, element i to sum i % 16 in order, then added as a tree
//   exp         kernel_loops.h
#include <cstddef>
#include <cstdint>

namespace ems::pdc::internal {

enum class Element : uint8_t { kF32, kBf16, kInt8 };

inline constexpr size_t kPanel = 32;     // columns of a matrix that lie together
inline constexpr size_t kLaneSums = 16;  // partial sums of a sum
inline constexpr size_t kKeyTile = 64;   // keys that attention takes at a time

// y[rows][columns] = x[rows][k] × w[k][columns], for columns [column_begin, column_end).
// Column n of row k of w is element (n / 32) * panel_stride + k * k_stride + n % 32; panels are
// whole, beyond `columns` there are zeros.
struct Product {
  const float* x = nullptr;
  size_t x_stride = 0;
  size_t rows = 0;
  size_t k = 0;
  const void* w = nullptr;
  Element element = Element::kF32;
  size_t k_stride = kPanel;
  size_t panel_stride = 0;
  const float* scales = nullptr;  // [columns, rounded up to 32]; each result is multiplied; or null
  size_t column_begin = 0;        // a multiple of 32
  size_t column_end = 0;
  float* y = nullptr;
  size_t y_stride = 0;
  bool add = false;          // s begins with y, which is read and written in whole panels
  float* widened = nullptr;  // room for [k][32]
};

// One tile of keys for rows of queries. A row's state is {largest score, 16 sums}; begin with
// {-inf, 0, …} and output 0, take the tiles in order, then divide.
struct AttendTile {
  const float* queries = nullptr;  // [rows], scaled
  size_t query_stride = 0;
  size_t rows = 0;
  size_t dim = 0;                 // of a query
  const float* keys = nullptr;    // [dim][64]
  const float* values = nullptr;  // [64][value_stride], value_stride a multiple of 32
  size_t value_stride = 0;
  size_t valid = 0;         // keys that count, 1 to 64; others may hold anything finite
  float* scores = nullptr;  // scratch [rows][64]
  float* output = nullptr;  // [rows][output_stride], output_stride >= value_stride
  size_t output_stride = 0;
  float* state = nullptr;  // [rows][1 + 16]
};
inline constexpr size_t kAttendState = 1 + kLaneSums;

// Threading: all of it pure.
struct Kernels {
  const char* name;
  void (*multiply)(const Product& product);
  void (*attend)(const AttendTile& tile);
  // The sum of a row's 16 sums.
  float (*attended)(const float* state);
  // y = x / sqrt(mean(x²) + epsilon) * weight; n a multiple of 16.
  void (*rms_norm)(const float* x, const float* weight, float epsilon, size_t n, float* y);
  // gate = gate * sigmoid(gate) * up; n a multiple of 16.
  void (*silu_multiply)(float* gate, const float* up, size_t n);
  void (*exp)(float* x, size_t n);  // in place; n a multiple of 16; below -87 it is 0
  void (*add_scaled)(const float* x, float a, size_t n, float* y);  // y = fma(a, x, y)
  void (*widen)(const uint16_t* bf16, size_t n, float* y);          // n a multiple of 2
  // rows[64][stride] → columns [dim][64]
  void (*transpose_tile)(const float* rows, size_t stride, size_t dim, float* columns);
  // Multiplies registers with each other `loops` times; returns the operations. For benchmarks.
  uint64_t (*peak)(uint64_t loops, float* sink);
};

inline uint16_t ToBf16(float value) {  // to nearest even; not for NaN
  uint32_t bits = 0;
  __builtin_memcpy(&bits, &value, sizeof bits);
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}
inline float FromBf16(uint16_t value) {
  const uint32_t bits = static_cast<uint32_t>(value) << 16;
  float result = 0;
  __builtin_memcpy(&result, &bits, sizeof result);
  return result;
}

}  // namespace ems::pdc::internal
