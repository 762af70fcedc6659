#pragma once
// Measures the rate at which this machine multiplies and adds, and the rate that the engine's
// products reach.
#include <cstddef>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/status.h"
#include "pdc/engine/model_config.h"

namespace ems::pdc {

// Names of the kernels that run on this processor, widest first; lives for ever.
std::vector<std::string> KernelNames();

struct ProductShape {
  size_t rows = 256;
  size_t k = 512;
  size_t columns = 512;
  WeightDtype weights = WeightDtype::kBf16;
};

// Multiplications and additions in a second, in 1e9, of one thread.
struct ArithmeticRates {
  double peak = 0;     // of registers with each other
  double product = 0;  // of x[rows][k] × weights[k][columns], best of several times
};
// Takes about twice `time`.   Errors: kInvalidArgument  no such kernels here
Result<ArithmeticRates> MeasureArithmetic(const std::string& kernels, const ProductShape& shape,
                                          Duration time);

// Operations that the engine's prefill of tokens [start, start + tokens) takes: two for each weight
// that a token meets, and attention over what is before it.
double PrefillOperations(const ModelConfig& config, uint64_t start, uint64_t tokens);

}  // namespace ems::pdc
