#pragma once
// Chooses among the tables of arithmetic (kernel_types.h), at run time: all give the same bits.
#include "pdc/engine/internal/kernel_types.h"

namespace ems::pdc::internal {

// The widest table that this processor has.
const Kernels& BestKernels();
// One a file that is compiled for its instruction set.
extern const Kernels kPortableKernels;
#ifdef EMS_ENGINE_X86
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;
#endif

// "avx512", "avx2", "portable"; null: not on this processor.
const Kernels* KernelsByName(const char* name);

}  // namespace ems::pdc::internal
