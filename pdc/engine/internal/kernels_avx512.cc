// Compiled for AVX-512; nothing here runs unless the processor has it.
#include <immintrin.h>

#include "pdc/engine/internal/kernel_loops.h"
#include "pdc/engine/internal/kernels.h"

namespace ems::pdc::internal {
namespace {

struct Avx512 {
  EMS_VECTORS(16);
  static constexpr int kRowsMax = 12;  // × 2 vectors of columns: 24 of 32 registers
  static constexpr int kColumnsOfTwo = 8;
  static constexpr int kColumnsOfFour = 4;
  static F Fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F ZipLow(F a, F b) {
    return _mm512_permutex2var_ps(
        a, _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23), b);
  }
  static F ZipHigh(F a, F b) {
    return _mm512_permutex2var_ps(
        a, _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31), b);
  }
};

}  // namespace

const Kernels kAvx512Kernels = Loops<Avx512>::Table("avx512");

}  // namespace ems::pdc::internal
