// For any processor. Where it has no fused multiply-add, the C library computes it: right, slow.
#include "pdc/engine/internal/kernel_loops.h"
#include "pdc/engine/internal/kernels.h"

namespace ems::pdc::internal {
namespace {

struct Portable {
  EMS_VECTORS(4);
  static constexpr int kRowsMax = 6;
  static constexpr int kColumnsOfTwo = 4;
  static constexpr int kColumnsOfFour = 2;
  static F Fma(F a, F b, F c) {
    F result{};
    for (size_t i = 0; i < kLanes; ++i) result[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return result;
  }
  static F ZipLow(F a, F b) { return F{a[0], b[0], a[1], b[1]}; }
  static F ZipHigh(F a, F b) { return F{a[2], b[2], a[3], b[3]}; }
};

}  // namespace

const Kernels kPortableKernels = Loops<Portable>::Table("portable");

}  // namespace ems::pdc::internal
