#pragma once
// The layers, one after the other, over the rows of one step.
#include <cstdint>
#include <span>
#include <vector>

#include "common/check.h"
#include "pdc/engine/internal/attention.h"
#include "pdc/engine/internal/compute.h"
#include "pdc/engine/internal/feed_forward.h"
#include "pdc/engine/internal/packed_model.h"
#include "pdc/engine/tokenizer.h"

namespace ems::pdc::internal {

// Threading: one thread at a time. Memory: about rows_max × 20 × hidden floats.
class Transformer final {
 public:
  Transformer(const PackedModel& model, const Kernels& kernels, size_t threads, size_t rows_max);

  size_t rows_max() const { return rows_max_; }
  // Computes `tokens` [rows], at most rows_max, as `segments` say, and writes their KV. The
  // segments' blocks are reserved, and the KV below each start is valid.
  void Run(std::span<const TokenId> tokens, std::span<const Segment> segments);
  // The hidden state of a row of the last Run, before the final norm. [hidden]
  const float* hidden(size_t row) const { return state_.row(row); }
  // Logits of rows of the last Run, at most rows_max. `logits`: [rows.size()][vocab].
  void Logits(std::span<const size_t> rows, float* logits);
  // The MTP head: of each segment (one row each; start is the position of `next`), the logits of
  // the token after `next`. `hiddens`: of the tokens before. `logits`: [segments][vocab]. What
  // hidden() gave is lost.
  void Draft(std::span<const TokenId> next, std::span<const float* const> hiddens,
             std::span<const Segment> segments, float* logits);

 private:
  const float* embedding(TokenId token) const {
    EMS_CHECK(token < model_.config.vocab, "token {} of {}", token, model_.config.vocab);
    return model_.embedding.data() + size_t{token} * model_.config.hidden;
  }
  void Norm(const FloatRows& from, const FloatBuffer& weight, size_t rows, const FloatRows& to);
  // state_ += what `part_` holds.
  void AddPart(size_t rows);
  void Head(size_t rows, float* logits);

  const PackedModel& model_;
  const size_t rows_max_;
  Compute compute_;
  Attention attention_;
  FeedForward feed_forward_;
  FloatRows state_, normed_, part_, joined_;  // [rows][hidden]; joined_: twice that
};

}  // namespace ems::pdc::internal
