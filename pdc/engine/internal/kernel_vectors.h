#pragma once
// Vectors of any width of registers: what the loops behind the kernels load, store and compare.
//
// Included by the kernels_*.cc alone, each of which is compiled for another instruction set, so
// everything that is instantiated here belongs to a type S of that file's unnamed namespace: no
// code for one processor can be taken for another. S has
//   EMS_VECTORS(kLanes)    Fma(a, b, c): a * b + c, rounded once    kRowsMax: rows of a tile
//   ZipLow(a, b), ZipHigh(a, b): {a0, b0, a1, b1, …}, its first and its second half
//   kColumnsOfTwo, kColumnsOfFour: vectors of columns of a tile with 2, with 3 or 4 rows
#include <cstddef>
#include <cstdint>

#include "pdc/engine/internal/kernel_types.h"

#if defined(__clang__)
#define EMS_UNROLL _Pragma("clang loop unroll(full)")
#else
#define EMS_UNROLL _Pragma("GCC unroll 16")
#endif

// Vectors of as many elements. Not in the template: gcc gives vectors that depend on it no
// conversions.
#define EMS_VECTORS(lanes)                                        \
  static constexpr size_t kLanes = lanes;                         \
  typedef float F __attribute__((vector_size(4 * (lanes))));      \
  typedef int32_t I __attribute__((vector_size(4 * (lanes))));    \
  typedef uint32_t U __attribute__((vector_size(4 * (lanes))));   \
  typedef uint16_t U16 __attribute__((vector_size(2 * (lanes)))); \
  typedef int16_t I16 __attribute__((vector_size(2 * (lanes))));  \
  typedef int8_t I8 __attribute__((vector_size(lanes)))

namespace ems::pdc::internal {

template <class S>
struct Vectors {
  using F = typename S::F;
  static constexpr size_t kLanes = S::kLanes;
  static constexpr size_t kPerPanel = kPanel / kLanes;
  using I = typename S::I;
  using U = typename S::U;
  using U16 = typename S::U16;
  using I16 = typename S::I16;
  using I8 = typename S::I8;

  template <class V, class T>
  static V Read(const T* from) {
    V value;
    __builtin_memcpy(&value, from, sizeof value);
    return value;
  }
  static F Load(const float* from) { return Read<F>(from); }
  static F Load(const uint16_t* from) {
    return reinterpret_cast<F>(__builtin_convertvector(Read<U16>(from), U) << 16);
  }
  static F Load(const int8_t* from) {
    const I16 half = __builtin_convertvector(Read<I8>(from), I16);
    return __builtin_convertvector(__builtin_convertvector(half, I), F);
  }
  static void Store(F value, float* to) { __builtin_memcpy(to, &value, sizeof value); }
  static F All(float value) { return F{} + value; }
  static F Max(F a, F b) { return a > b ? a : b; }
  static F Min(F a, F b) { return a < b ? a : b; }
};

}  // namespace ems::pdc::internal
