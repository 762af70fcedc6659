#include "pdc/engine/internal/feed_forward.h"

#include <algorithm>
#include <cstring>

#include "common/check.h"

namespace ems::pdc::internal {
namespace {

size_t WidestInside(const ModelConfig& config) {
  return 2 * std::max<size_t>(config.dense_dim, config.shared_dim());
}
size_t RoutedRows(const ModelConfig& config, size_t rows) {
  return config.experts == 0 ? 0 : rows * config.experts_per_token;
}

}  // namespace

FeedForward::FeedForward(const PackedModel& model, Compute* compute, size_t rows_max)
    : config_(model.config),
      rows_max_(rows_max),
      compute_(compute),
      inside_(rows_max, WidestInside(config_)),
      scores_(rows_max, config_.experts),
      gathered_(RoutedRows(config_, rows_max), config_.hidden),
      routed_(RoutedRows(config_, rows_max), size_t{2} * config_.expert_dim),
      routed_out_(RoutedRows(config_, rows_max), config_.hidden),
      choices_(RoutedRows(config_, rows_max)),
      starts_(config_.experts + 1) {}

void FeedForward::Dense(const FeedForwardWeights& weights, RowsView x, size_t rows, RowsView out) {
  const size_t inside = weights.inside();
  EMS_CHECK(rows <= rows_max_ && 2 * inside <= inside_.stride(), "{} rows of {}, {} wide", rows,
            rows_max_, inside);
  compute_->Multiply(weights.gate_up, x, rows, inside_);
  for (size_t row = 0; row < rows; ++row)
    compute_->kernels().silu_multiply(inside_.row(row), inside_.row(row) + inside, inside);
  compute_->Multiply(weights.down, inside_, rows, out);
}

void FeedForward::Score(float* scores) const {
  const Kernels& kernels = compute_->kernels();
  const size_t experts = config_.experts, padded = RoundUp(experts, kLaneSums);
  if (config_.router == RouterKind::kSigmoid) {
    for (size_t i = 0; i < experts; ++i) scores[i] = -scores[i];
    kernels.exp(scores, padded);
    for (size_t i = 0; i < experts; ++i) scores[i] = 1.0F / (1.0F + scores[i]);
    return;
  }
  const float most = *std::max_element(scores, scores + experts);
  for (size_t i = 0; i < experts; ++i) scores[i] -= most;
  kernels.exp(scores, padded);
  float sum = 0;
  for (size_t i = 0; i < experts; ++i) sum += scores[i];
  for (size_t i = 0; i < experts; ++i) scores[i] /= sum;
}

void FeedForward::Choose(size_t rows) {
  const size_t each = config_.experts_per_token;
  for (size_t row = 0; row < rows; ++row) {
    float* const scores = scores_.row(row);
    Score(scores);
    Choice* const chosen = choices_.data() + row * each;
    float sum = 0;
    for (size_t rank = 0; rank < each; ++rank) {
      float* const best = std::max_element(scores, scores + config_.experts);
      chosen[rank] = {static_cast<uint32_t>(best - scores), *best, 0};
      sum += *best;
      *best = -1;  // scores are 0 to 1
    }
    for (size_t rank = 0; rank < each; ++rank)
      chosen[rank].weight = chosen[rank].weight / (sum + 1e-20F) * config_.routed_scale;
  }
}

void FeedForward::Gather(RowsView x, size_t rows) {
  const size_t count = rows * config_.experts_per_token;
  std::fill(starts_.begin(), starts_.end(), 0);
  for (size_t i = 0; i < count; ++i) ++starts_[choices_[i].expert + 1];
  for (size_t i = 1; i < starts_.size(); ++i) starts_[i] += starts_[i - 1];
  std::vector<uint32_t> next(starts_.begin(), starts_.end() - 1);
  for (size_t i = 0; i < count; ++i) {
    choices_[i].place = next[choices_[i].expert]++;
    std::memcpy(gathered_.row(choices_[i].place), x.row(i / config_.experts_per_token),
                config_.hidden * sizeof(float));
  }
}

void FeedForward::Experts(const LayerWeights& weights, RowsView x, size_t rows, RowsView out) {
  const Kernels& kernels = compute_->kernels();
  const size_t each = config_.experts_per_token, inside = config_.expert_dim;
  EMS_CHECK(rows <= rows_max_ && weights.experts.size() == config_.experts,
            "{} rows of {}, {} experts", rows, rows_max_, weights.experts.size());
  compute_->Multiply(weights.router, x, rows, scores_);
  Choose(rows);
  Gather(x, rows);
  const size_t operations = rows * each * config_.hidden * inside * 3;
  compute_->ForEach(config_.experts, operations, [&](size_t expert, size_t member) {
    const size_t first = starts_[expert], count = starts_[expert + 1] - first;
    if (count == 0) return;
    const FeedForwardWeights& own = weights.experts[expert];
    compute_->MultiplyAlone(own.gate_up, gathered_.from(first), count, routed_.from(first), member);
    for (size_t i = first; i < first + count; ++i)
      kernels.silu_multiply(routed_.row(i), routed_.row(i) + inside, inside);
    compute_->MultiplyAlone(own.down, routed_.from(first), count, routed_out_.from(first), member);
  });
  if (weights.shared.down.empty()) {
    for (size_t row = 0; row < rows; ++row)
      std::memset(out.row(row), 0, config_.hidden * sizeof(float));
  } else {
    Dense(weights.shared, x, rows, out);
  }
  for (size_t i = 0; i < rows * each; ++i)
    kernels.add_scaled(routed_out_.row(choices_[i].place), choices_[i].weight, config_.hidden,
                       out.row(i / each));
}

}  // namespace ems::pdc::internal
