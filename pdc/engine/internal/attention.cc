#include "pdc/engine/internal/attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "common/check.h"

namespace ems::pdc::internal {
namespace {

constexpr size_t kPartTokens = 32;  // their queries and outputs stay in the cache of a core

}  // namespace

Attention::Attention(const PackedModel& model, Compute* compute, size_t rows_max)
    : model_(model),
      rows_max_(rows_max),
      config_(model.config),
      compute_(compute),
      query_stride_(RoundUp(config_.cache_dim(), kLaneSums) + kLaneSums),
      output_stride_(RoundUp(config_.latent_dim, kPanel)),
      q_down_(rows_max, config_.q_lora_dim),
      q_(rows_max, size_t{config_.heads} * config_.query_dim()),
      kv_(rows_max, config_.cache_dim()),
      values_(rows_max, size_t{config_.heads} * config_.value_dim),
      queries_(rows_max * config_.heads * query_stride_),
      outputs_(rows_max * config_.heads * output_stride_),
      states_(rows_max * config_.heads * kAttendState) {
  for (size_t i = 0; i < compute->team().members(); ++i) {
    tiles_.push_back({FloatBuffer(kKeyTile * output_stride_),
                      FloatBuffer(kKeyTile * config_.rope_dim),
                      FloatBuffer(kKeyTile * config_.cache_dim()),
                      FloatBuffer(kPartTokens * config_.heads * kKeyTile)});
  }
}

void Attention::Run(const AttentionWeights& weights, uint32_t layer,
                    std::span<const Segment> segments, RowsView x, size_t rows, RowsView out) {
  const bool own = !weights.kv_down.empty();
  EMS_CHECK(rows <= rows_max_, "{} rows of {}", rows, rows_max_);
  for (const Segment& segment : segments)
    EMS_CHECK(segment.first_row + segment.rows <= rows &&
                  segment.start + (own ? segment.rows : 0) <= segment.sequence->capacity(),
              "rows {}+{} of {} at position {}, with room for {}", segment.first_row, segment.rows,
              rows, segment.start, segment.sequence->capacity());
  if (own) WriteCache(weights, layer, segments, x, rows);
  MakeQueries(weights, segments, x, rows);
  Attend(layer, segments, own);
  const size_t heads = config_.heads;
  const size_t operations = rows * heads * config_.latent_dim * config_.value_dim;
  compute_->ForEach(heads, operations, [&](size_t head, size_t member) {
    compute_->MultiplyAlone(weights.value[head],
                            {outputs_.data() + head * output_stride_, heads * output_stride_}, rows,
                            {values_.row(0) + head * config_.value_dim, values_.stride()}, member);
  });
  compute_->Multiply(weights.out, values_, rows, out);
}

void Attention::WriteCache(const AttentionWeights& weights, uint32_t layer,
                           std::span<const Segment> segments, RowsView x, size_t rows) {
  compute_->Multiply(weights.kv_down, x, rows, kv_);
  for (const Segment& segment : segments) {
    const KvArena& arena = *segment.sequence->arena();
    for (size_t i = 0; i < segment.rows; ++i) {
      float* const latent = kv_.row(segment.first_row + i);
      float* const rope = latent + config_.latent_dim;
      const auto position = static_cast<uint32_t>(segment.start + i);
      compute_->kernels().rms_norm(latent, weights.kv_norm.data(), config_.norm_epsilon,
                                   config_.latent_dim, latent);
      Rotate(position, rope);
      arena.Write(layer, segment.sequence->blocks()[position / arena.block_tokens()],
                  position % arena.block_tokens(), latent, rope);
    }
  }
}

// The halves of `values` [rope_dim] are the two coordinates of its rotations.
void Attention::Rotate(uint32_t position, float* values) const {
  const size_t half = config_.rope_dim / 2;
  const float* const cos = model_.cos.data() + position * half;
  const float* const sin = model_.sin.data() + position * half;
  for (size_t i = 0; i < half; ++i) {
    const float a = values[i], b = values[half + i];
    values[i] = a * cos[i] - b * sin[i];
    values[half + i] = b * cos[i] + a * sin[i];
  }
}

void Attention::MakeQueries(const AttentionWeights& weights, std::span<const Segment> segments,
                            RowsView x, size_t rows) {
  if (!weights.q_down.empty()) {
    compute_->Multiply(weights.q_down, x, rows, q_down_);
    for (size_t row = 0; row < rows; ++row)
      compute_->kernels().rms_norm(q_down_.row(row), weights.q_norm.data(), config_.norm_epsilon,
                                   config_.q_lora_dim, q_down_.row(row));
    x = q_down_;
  }
  compute_->Multiply(weights.q, x, rows, q_);
  const size_t heads = config_.heads, dim = config_.query_dim(), nope = config_.nope_dim;
  const float scale = 1.0F / std::sqrt(static_cast<float>(dim));
  for (const Segment& segment : segments) {
    for (size_t row = segment.first_row; row < segment.first_row + segment.rows; ++row) {
      const auto position = static_cast<uint32_t>(segment.start + row - segment.first_row);
      for (size_t i = 0; i < heads * dim; ++i) q_.row(row)[i] *= scale;
      for (size_t head = 0; head < heads; ++head) {
        float* const rope = q_.row(row) + head * dim + nope;
        Rotate(position, rope);
        std::memcpy(queries_.data() + (row * heads + head) * query_stride_ + config_.latent_dim,
                    rope, config_.rope_dim * sizeof(float));
      }
    }
  }
  compute_->ForEach(
      heads, rows * heads * nope * config_.latent_dim, [&](size_t head, size_t member) {
        compute_->MultiplyAlone(weights.absorb[head], {q_.row(0) + head * dim, q_.stride()}, rows,
                                {queries_.data() + head * query_stride_, heads * query_stride_},
                                member);
      });
}

void Attention::Attend(uint32_t layer, std::span<const Segment> segments, bool own) {
  std::vector<Part> parts;
  size_t operations = 0;
  for (const Segment& segment : segments) {
    for (size_t first = 0; first < segment.rows; first += kPartTokens)
      parts.push_back({&segment, first, std::min(kPartTokens, segment.rows - first)});
    operations += segment.rows * config_.heads * (segment.start + segment.rows) *
                  (config_.cache_dim() + config_.latent_dim);
  }
  compute_->ForEach(parts.size(), operations, [&](size_t part, size_t member) {
    AttendPart(layer, parts[part], own, &tiles_[member]);
  });
}

void Attention::AttendPart(uint32_t layer, const Part& part, bool own, Tile* tile) {
  const size_t heads = config_.heads;
  const size_t first_row = (part.segment->first_row + part.first) * heads;
  float* const outputs = outputs_.data() + first_row * output_stride_;
  float* const states = states_.data() + first_row * kAttendState;
  std::memset(outputs, 0, part.tokens * heads * output_stride_ * sizeof(float));
  std::memset(states, 0, part.tokens * heads * kAttendState * sizeof(float));
  for (size_t i = 0; i < part.tokens * heads; ++i)
    states[i * kAttendState] = -std::numeric_limits<float>::infinity();

  AttendTile call;
  call.query_stride = query_stride_;
  call.dim = config_.cache_dim();
  call.keys = tile->keys.data();
  call.values = tile->rows.data();
  call.value_stride = output_stride_;
  call.scores = tile->scores.data();
  call.output_stride = output_stride_;
  const auto attend = [&](size_t token, size_t tokens, size_t valid) {
    call.queries = queries_.data() + (first_row + token * heads) * query_stride_;
    call.rows = tokens * heads;
    call.valid = valid;
    call.output = outputs + token * heads * output_stride_;
    call.state = states + token * heads * kAttendState;
    compute_->kernels().attend(call);
  };
  // Token i sees the keys below seen(i).
  const auto seen = [&](size_t i) { return part.segment->start + part.first + i + (own ? 1 : 0); };
  const size_t most = seen(part.tokens - 1);
  for (size_t begin = 0; begin < most; begin += kKeyTile) {
    LoadTile(*part.segment->sequence, layer, begin, std::min(kKeyTile, most - begin), tile);
    size_t token = seen(0) > begin ? 0 : begin + 1 - seen(0);
    // A tile that a token sees in part is the token's alone: how many keys count is in its sums.
    for (; token < part.tokens && seen(token) < begin + kKeyTile; ++token)
      attend(token, 1, seen(token) - begin);
    if (token < part.tokens) attend(token, part.tokens - token, kKeyTile);
  }
  for (size_t i = 0; i < part.tokens * heads; ++i) {
    const float scale = 1.0F / compute_->kernels().attended(states + i * kAttendState);
    float* const output = outputs + i * output_stride_;
    for (size_t d = 0; d < config_.latent_dim; ++d) output[d] *= scale;
  }
}

void Attention::LoadTile(const KvSequence& sequence, uint32_t layer, size_t first, size_t count,
                         Tile* tile) const {
  const KvArena& arena = *sequence.arena();
  const size_t latent = config_.latent_dim, rope = config_.rope_dim;
  const Kernels& kernels = compute_->kernels();
  const auto read = [&](const std::byte* from, size_t size, float* to) {
    if (arena.options().storage == KvStorage::kF32) {
      std::memcpy(to, from, size * sizeof(float));
    } else {
      kernels.widen(reinterpret_cast<const uint16_t*>(from), size, to);
    }
  };
  // Rows of a block follow each other, and so do those of the tile unless its panels are padded.
  const bool dense = output_stride_ == latent;
  for (size_t i = 0; i < count;) {
    const BlockId block = sequence.blocks()[(first + i) / arena.block_tokens()];
    const size_t row = (first + i) % arena.block_tokens();
    const size_t some = std::min(count - i, arena.block_tokens() - row);
    const std::byte* const latents =
        arena.latents(layer, block) + row * latent * arena.element_bytes();
    for (size_t done = 0; done < some; done += dense ? some : 1)
      read(latents + done * latent * arena.element_bytes(), dense ? some * latent : latent,
           tile->rows.data() + (i + done) * output_stride_);
    read(arena.ropes(layer, block) + row * rope * arena.element_bytes(), some * rope,
         tile->ropes.data() + i * rope);
    i += some;
  }
  std::memset(tile->rows.data() + count * output_stride_, 0,
              (kKeyTile - count) * output_stride_ * sizeof(float));
  std::memset(tile->ropes.data() + count * rope, 0, (kKeyTile - count) * rope * sizeof(float));
  kernels.transpose_tile(tile->rows.data(), output_stride_, latent, tile->keys.data());
  kernels.transpose_tile(tile->ropes.data(), rope, rope, tile->keys.data() + latent * kKeyTile);
}

}  // namespace ems::pdc::internal
