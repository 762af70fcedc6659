#include "pdc/engine/arithmetic_rates.h"

#include <algorithm>
#include <cstring>

#include "pdc/engine/internal/float_buffer.h"
#include "pdc/engine/internal/kernels.h"
#include "pdc/engine/internal/packed_matrix.h"
#include "pdc/engine/tensor_plan.h"

namespace ems::pdc {
namespace {

constexpr int kRounds = 8;

// The best rate of several rounds of `time` / kRounds. `work` returns its operations.
template <typename Work>
double BestRate(Duration time, const Work& work) {
  double best = 0;
  for (int round = 0; round < kRounds; ++round) {
    const TimePoint begin = Clock::System().Now();
    double operations = 0;
    Duration took{0};
    while (took < time / kRounds) {
      operations += work();
      took = Clock::System().Now() - begin;
    }
    best = std::max(best, operations / static_cast<double>(took.count()));
  }
  return best;
}

model::DType DTypeOf(WeightDtype weights) {
  if (weights == WeightDtype::kInt8) return model::DType::kI8;
  return weights == WeightDtype::kBf16 ? model::DType::kBF16 : model::DType::kF32;
}

}  // namespace

std::vector<std::string> KernelNames() {
  std::vector<std::string> names;
  for (const char* name : {"avx512", "avx2", "portable"})
    if (internal::KernelsByName(name) != nullptr) names.emplace_back(name);
  return names;
}

Result<ArithmeticRates> MeasureArithmetic(const std::string& kernels, const ProductShape& shape,
                                          Duration time) {
  const internal::Kernels* const table = internal::KernelsByName(kernels.c_str());
  if (table == nullptr)
    return Error(StatusCode::kInvalidArgument, "no kernels '{}' on this processor", kernels);
  ArithmeticRates rates;
  float sink = 0;
  rates.peak = BestRate(time, [&] { return static_cast<double>(table->peak(100'000, &sink)); });
  std::vector<std::byte> elements(shape.k * shape.columns * sizeof(float));
  internal::MatrixPart part;
  part.data = elements.data();
  part.dtype = DTypeOf(shape.weights);
  part.columns = shape.columns;
  part.column_stride = shape.k;
  const std::vector<float> scales(shape.columns, 1.0F);
  if (shape.weights == WeightDtype::kInt8)
    part.scales = reinterpret_cast<const std::byte*>(scales.data());
  const internal::PackedMatrix matrix(shape.k, {part});
  const internal::FloatRows x(shape.rows, shape.k), y(shape.rows, shape.columns);
  const internal::FloatBuffer widened(shape.k * internal::kPanel);
  const auto product = matrix.Times(x, shape.rows, y, 0, matrix.panels(), widened.data());
  const double operations = 2.0 * static_cast<double>(shape.rows) * static_cast<double>(shape.k) *
                            static_cast<double>(shape.columns);
  rates.product = BestRate(time, [&] {
    table->multiply(product);
    return operations;
  });
  return rates;
}

double PrefillOperations(const ModelConfig& config, uint64_t start, uint64_t tokens) {
  const double keys = static_cast<double>(tokens) *
                      (static_cast<double>(start) + (static_cast<double>(tokens) + 1) / 2);
  // The head is for the last token alone.
  const double head = static_cast<double>(config.vocab) * config.hidden;
  const double weights = static_cast<double>(ActiveParametersOf(config)) - head;
  return 2 * (weights * static_cast<double>(tokens) + head) +
         2.0 * keys * config.layers * config.heads * (config.cache_dim() + config.latent_dim);
}

}  // namespace ems::pdc
