#include "pdc/engine/internal/kernels.h"

#include <cstring>
#include <initializer_list>

namespace ems::pdc::internal {
namespace {

#ifdef EMS_ENGINE_X86
bool HasAvx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
bool HasAvx512() {
  return HasAvx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
#endif

}  // namespace

const Kernels* KernelsByName(const char* name) {
#ifdef EMS_ENGINE_X86
  if (std::strcmp(name, kAvx512Kernels.name) == 0) return HasAvx512() ? &kAvx512Kernels : nullptr;
  if (std::strcmp(name, kAvx2Kernels.name) == 0) return HasAvx2() ? &kAvx2Kernels : nullptr;
#endif
  return std::strcmp(name, kPortableKernels.name) == 0 ? &kPortableKernels : nullptr;
}

const Kernels& BestKernels() {
  static const Kernels* const best = [] {
    for (const char* name : {"avx512", "avx2"})
      if (const Kernels* kernels = KernelsByName(name)) return kernels;
    return &kPortableKernels;
  }();
  return *best;
}

}  // namespace ems::pdc::internal
