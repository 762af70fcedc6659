#pragma once
// Multi-head latent attention over paged caches, in its absorbed form: queries are brought into the
// space of the latents, so keys and values of a token are never made, and a cached token costs the
// same wherever it was computed.
//
// Invariant: what attention reads is what the cache holds: a token's latent and rotated key are
// written first and read back, rounded. A row's result depends on its own input and the cache below
// its position; keys are taken in tiles of 64 that begin at multiples of 64.
#include <cstdint>
#include <span>
#include <vector>

#include "pdc/engine/internal/compute.h"
#include "pdc/engine/internal/packed_model.h"

namespace ems::pdc::internal {

// Threading: one thread at a time.
class Attention final {
 public:
  Attention(const PackedModel& model, Compute* compute, size_t rows_max);

  // `x`: [rows], normed. Writes the rows' cache of `layer`, where `weights` make one, and
  // attends to it, up to and including each row's own position; otherwise attends to the positions
  // below. `out`: [rows].
  void Run(const AttentionWeights& weights, uint32_t layer, std::span<const Segment> segments,
           RowsView x, size_t rows, RowsView out);

 private:
  // Scratch of one thread.
  struct Tile {
    FloatBuffer rows;    // [64][stride]: latents
    FloatBuffer ropes;   // [64][rope]
    FloatBuffer keys;    // [latent + rope][64]
    FloatBuffer scores;  // [rows][64]
  };
  // Some tokens of a segment: what one thread does at a time.
  struct Part {
    const Segment* segment;
    size_t first;  // token of the segment
    size_t tokens;
  };

  void WriteCache(const AttentionWeights& weights, uint32_t layer,
                  std::span<const Segment> segments, RowsView x, size_t rows);
  void MakeQueries(const AttentionWeights& weights, std::span<const Segment> segments, RowsView x,
                   size_t rows);
  void Attend(uint32_t layer, std::span<const Segment> segments, bool own);
  void AttendPart(uint32_t layer, const Part& part, bool own, Tile* tile);
  // Tokens [first, first + count) of a sequence; the rest of the tile is zeros.
  void LoadTile(const KvSequence& sequence, uint32_t layer, size_t first, size_t count,
                Tile* tile) const;
  void Rotate(uint32_t position, float* values) const;

  const PackedModel& model_;
  const size_t rows_max_;
  const ModelConfig& config_;
  Compute* const compute_;
  const size_t query_stride_;   // of one head's query in latent space
  const size_t output_stride_;  // of one head's output in latent space
  FloatRows q_down_, q_, kv_, values_;
  FloatBuffer queries_, outputs_, states_;  // [rows × heads]
  std::vector<Tile> tiles_;                 // of each thread
};

}  // namespace ems::pdc::internal
