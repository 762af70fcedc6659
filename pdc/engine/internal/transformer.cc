#include "pdc/engine/internal/transformer.h"

#include <algorithm>
#include <cstring>

#include "common/check.h"

namespace ems::pdc::internal {
namespace {

// The longest sum of any matrix.
size_t DeepestOf(const ModelConfig& c) {
  return std::max<size_t>({size_t{c.mtp ? 2U : 1U} * c.hidden, c.q_lora_dim, c.dense_dim,
                           c.expert_dim, c.shared_dim(), size_t{c.heads} * c.value_dim, c.nope_dim,
                           c.latent_dim});
}

}  // namespace

Transformer::Transformer(const PackedModel& model, const Kernels& kernels, size_t threads,
                         size_t rows_max)
    : model_(model),
      rows_max_(rows_max),
      compute_(kernels, threads, DeepestOf(model.config)),
      attention_(model, &compute_, rows_max),
      feed_forward_(model, &compute_, rows_max),
      state_(rows_max, model.config.hidden),
      normed_(rows_max, model.config.hidden),
      part_(rows_max, model.config.hidden),
      joined_(model.config.mtp ? rows_max : 0, size_t{2} * model.config.hidden) {}

void Transformer::Norm(const FloatRows& from, const FloatBuffer& weight, size_t rows,
                       const FloatRows& to) {
  for (size_t row = 0; row < rows; ++row)
    compute_.kernels().rms_norm(from.row(row), weight.data(), model_.config.norm_epsilon,
                                model_.config.hidden, to.row(row));
}

void Transformer::AddPart(size_t rows) {
  for (size_t row = 0; row < rows; ++row)
    compute_.kernels().add_scaled(part_.row(row), 1.0F, model_.config.hidden, state_.row(row));
}

void Transformer::Run(std::span<const TokenId> tokens, std::span<const Segment> segments) {
  const size_t rows = tokens.size();
  EMS_CHECK(rows <= rows_max_, "{} rows of {}", rows, rows_max_);
  for (size_t row = 0; row < rows; ++row)
    std::memcpy(state_.row(row), embedding(tokens[row]), model_.config.hidden * sizeof(float));
  for (uint32_t i = 0; i < model_.config.layers; ++i) {
    const LayerWeights& layer = model_.layers[i];
    Norm(state_, layer.attention.norm, rows, normed_);
    attention_.Run(layer.attention, i, segments, normed_, rows, part_);
    AddPart(rows);
    Norm(state_, layer.norm, rows, normed_);
    if (layer.experts.empty()) {
      feed_forward_.Dense(layer.dense, normed_, rows, part_);
    } else {
      feed_forward_.Experts(layer, normed_, rows, part_);
    }
    AddPart(rows);
  }
}

void Transformer::Head(size_t rows, float* logits) {
  compute_.Multiply(model_.head, normed_, rows, {logits, model_.config.vocab});
}

void Transformer::Logits(std::span<const size_t> rows, float* logits) {
  EMS_CHECK(rows.size() <= rows_max_, "{} rows of {}", rows.size(), rows_max_);
  for (size_t i = 0; i < rows.size(); ++i) {
    EMS_CHECK(rows[i] < rows_max_, "row {} of {}", rows[i], rows_max_);
    compute_.kernels().rms_norm(state_.row(rows[i]), model_.norm.data(), model_.config.norm_epsilon,
                                model_.config.hidden, normed_.row(i));
  }
  Head(rows.size(), logits);
}

void Transformer::Draft(std::span<const TokenId> next, std::span<const float* const> hiddens,
                        std::span<const Segment> segments, float* logits) {
  const MtpWeights& mtp = model_.mtp;
  const ModelConfig& config = model_.config;
  const size_t rows = next.size();
  EMS_CHECK(config.mtp && rows <= rows_max_, "{} rows of {}", rows, rows_max_);
  for (size_t row = 0; row < rows; ++row) {
    compute_.kernels().rms_norm(embedding(next[row]), mtp.embedding_norm.data(),
                                config.norm_epsilon, config.hidden, joined_.row(row));
    compute_.kernels().rms_norm(hiddens[row], mtp.hidden_norm.data(), config.norm_epsilon,
                                config.hidden, joined_.row(row) + config.hidden);
  }
  compute_.Multiply(mtp.join, joined_, rows, state_);
  Norm(state_, mtp.attention.norm, rows, normed_);
  attention_.Run(mtp.attention, config.layers - 1, segments, normed_, rows, part_);
  AddPart(rows);
  Norm(state_, mtp.norm, rows, normed_);
  feed_forward_.Dense(mtp.dense, normed_, rows, part_);
  AddPart(rows);
  Norm(state_, mtp.final_norm, rows, normed_);
  Head(rows, logits);
}

}  // namespace ems::pdc::internal
