#pragma once
// The feed-forward part of a layer: plain, or a mixture of experts.
//
// Rows of a step are gathered by expert; each row's result is that of the row alone, and its
// experts are summed in the order of their scores.
#include <cstdint>
#include <vector>

#include "pdc/engine/internal/compute.h"
#include "pdc/engine/internal/packed_model.h"

namespace ems::pdc::internal {

// Threading: one thread at a time.
class FeedForward final {
 public:
  FeedForward(const PackedModel& model, Compute* compute, size_t rows_max);

  // `x`: [rows], normed; `out`: [rows].
  void Dense(const FeedForwardWeights& weights, RowsView x, size_t rows, RowsView out);
  void Experts(const LayerWeights& weights, RowsView x, size_t rows, RowsView out);

 private:
  struct Choice {
    uint32_t expert = 0;
    float weight = 0;
    uint32_t place = 0;  // among the gathered rows
  };
  // Scores → choices_ [rows][experts_per_token], best first; of equals the lower number.
  void Choose(size_t rows);
  void Score(float* scores) const;
  // Places by expert, in the order of rows; starts_ gets each expert's first.
  void Gather(RowsView x, size_t rows);

  const ModelConfig& config_;
  const size_t rows_max_;
  Compute* const compute_;
  FloatRows inside_;                          // [rows][gate, up]
  FloatRows scores_;                          // [rows][experts]
  FloatRows gathered_, routed_, routed_out_;  // [rows × experts_per_token]
  std::vector<Choice> choices_;
  std::vector<uint32_t> starts_;  // [experts + 1]
};

}  // namespace ems::pdc::internal
