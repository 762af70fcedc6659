#pragma once
// The kernels, threads and scratch memory that the parts of the transformer compute with.
#include <algorithm>
#include <cstddef>
#include <vector>

#include "common/check.h"
#include "pdc/engine/internal/float_buffer.h"
#include "pdc/engine/internal/kernel_types.h"
#include "pdc/engine/internal/packed_matrix.h"
#include "pdc/engine/internal/team.h"
#include "pdc/engine/kv_sequence.h"

namespace ems::pdc::internal {

// Rows of one sequence in a step: row first_row + i is the token at position start + i.
struct Segment {
  const KvSequence* sequence = nullptr;
  size_t first_row = 0;
  size_t rows = 0;
  uint32_t start = 0;
};

// Threading: one thread at a time.
class Compute final {
 public:
  // `k_max`: of any matrix.
  Compute(const Kernels& kernels, size_t threads, size_t k_max)
      : kernels_(kernels), k_max_(k_max), team_(threads) {
    for (size_t i = 0; i < team_.members(); ++i) widened_.emplace_back(k_max * kPanel);
  }

  const Kernels& kernels() const { return kernels_; }
  Team& team() { return team_; }
  float* widened(size_t member) const { return widened_[member].data(); }

  // y = x × matrix, on one thread, which is `member`.
  void MultiplyAlone(const PackedMatrix& matrix, RowsView x, size_t rows, RowsView y,
                     size_t member) const {
    EMS_CHECK(matrix.k() <= k_max_, "a matrix {} deep, {} at most", matrix.k(), k_max_);
    kernels_.multiply(matrix.Times(x, rows, y, 0, matrix.panels(), widened_[member].data()));
  }
  // The same on all threads, where it is enough work to share.
  void Multiply(const PackedMatrix& matrix, RowsView x, size_t rows, RowsView y) {
    const size_t panels = matrix.panels();
    EMS_CHECK(matrix.k() <= k_max_, "a matrix {} deep, {} at most", matrix.k(), k_max_);
    if (!WorthSharing(rows * matrix.k() * matrix.columns()))
      return MultiplyAlone(matrix, x, rows, y, 0);
    const size_t parts = std::min(team_.members(), panels);
    team_.ForEach(parts, [&](size_t part, size_t member) {
      kernels_.multiply(matrix.Times(x, rows, y, panels * part / parts, panels * (part + 1) / parts,
                                     widened_[member].data()));
    });
  }
  // Calls work(part, member) for each part, on all threads where `operations` are worth it.
  template <typename Work>
  void ForEach(size_t parts, size_t operations, const Work& work) {
    if (WorthSharing(operations)) return team_.ForEach(parts, work);
    for (size_t part = 0; part < parts; ++part) work(part, size_t{0});
  }

 private:
  // Waking a thread takes as long as some million multiplications.
  static constexpr size_t kShared = 1'000'000;
  bool WorthSharing(size_t operations) const { return team_.members() > 1 && operations > kShared; }

  const Kernels& kernels_;
  const size_t k_max_;
  Team team_;
  std::vector<FloatBuffer> widened_;
};

}  // namespace ems::pdc::internal
