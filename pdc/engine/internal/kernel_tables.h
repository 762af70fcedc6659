#pragma once
// The tables, one a file that is compiled for its instruction set.
#include "pdc/engine/internal/kernels.h"

namespace ems::pdc::internal {

extern const Kernels kPortableKernels;
#ifdef EMS_ENGINE_X86
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;
#endif

}  // namespace ems::pdc::internal
