// Compiled for AVX2 and FMA; nothing here runs unless the processor has them.
#include <immintrin.h>

#include "pdc/engine/internal/kernel_loops.h"
#include "pdc/engine/internal/kernels.h"

namespace ems::pdc::internal {
namespace {

struct Avx2 {
  EMS_VECTORS(8);
  static constexpr int kRowsMax = 6;  // × 2 vectors of columns: 12 of 16 registers
  static constexpr int kColumnsOfTwo = 4;
  static constexpr int kColumnsOfFour = 2;
  static F Fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static F ZipLow(F a, F b) {
    return _mm256_permute2f128_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b), 0x20);
  }
  static F ZipHigh(F a, F b) {
    return _mm256_permute2f128_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b), 0x31);
  }
};

}  // namespace

const Kernels kAvx2Kernels = Loops<Avx2>::Table("avx2");

}  // namespace ems::pdc::internal
