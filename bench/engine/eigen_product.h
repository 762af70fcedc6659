#pragma once
// Eigen's matrix product, as a peer of the engine's.
#include <cstddef>

#include "common/clock.h"

namespace ems::bench {

// Operations a second, in 1e9, of x[rows][k] × w[k][columns] in F32 on this thread with AVX2, best
// of several times; 0 where the processor has none.
double EigenProductRate(size_t rows, size_t k, size_t columns, Duration time);

}  // namespace ems::bench
