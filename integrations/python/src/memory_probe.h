#pragma once
// Whether memory that somebody names by its address is mapped here, so that an accelerator's
// address is an error and not the end of the process.
#include <span>

#include "common/bytes.h"

namespace ems::python {

// True when this process can read the first and the last byte of each part, and where the kernel
// does not say. Cost: a syscall for 512 parts. It does not see holes, nor read-only memory.
bool IsReachable(std::span<const MutableBytes> parts);

}  // namespace ems::python
