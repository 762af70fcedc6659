// Compiled for AVX-512; nothing here runs unless the processor has it.
#include <immintrin.h>

#include "pdc/engine/internal/kernel_loops.h"
#include "pdc/engine/internal/kernel_tables.h"

namespace ems::pdc::internal {
namespace {

struct Avx512 {
  EMS_VECTORS(16);
  static constexpr int kRowsMax = 12;  // × 2 vectors of columns: 24 of 32 registers
  static constexpr int kColumnsOfTwo = 8;
  static constexpr int kColumnsOfFour = 4;
  static F Fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
};

}  // namespace

const Kernels kAvx512Kernels = Loops<Avx512>::Table("avx512");

}  // namespace ems::pdc::internal
