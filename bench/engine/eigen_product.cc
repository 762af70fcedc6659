// Compiled for AVX2 where there is such a thing; asks before it runs.
#include "bench/engine/eigen_product.h"

#include <Eigen/Core>
#include <algorithm>

namespace ems::bench {

double EigenProductRate(size_t rows, size_t k, size_t columns, Duration time) {
#ifdef __AVX2__
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return 0;
#endif
  using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  const auto n = [](size_t size) { return static_cast<Eigen::Index>(size); };
  const Matrix x = Matrix::Constant(n(rows), n(k), 0.5F), w = Matrix::Constant(n(k), n(columns), 2);
  Matrix y(n(rows), n(columns));
  const double operations =
      2.0 * static_cast<double>(rows) * static_cast<double>(k) * static_cast<double>(columns);
  double best = 0;
  constexpr int kRounds = 8;
  for (int round = 0; round < kRounds; ++round) {
    const TimePoint begin = Clock::System().Now();
    double done = 0;
    Duration took{0};
    while (took < time / kRounds) {
      y.noalias() = x * w;
      done += operations;
      took = Clock::System().Now() - begin;
    }
    best = std::max(best, done / static_cast<double>(took.count()));
  }
  return best;
}

}  // namespace ems::bench
