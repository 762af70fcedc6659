#pragma once
// All weights as kernels read them.
#include <cstddef>
#include <vector>

#include "pdc/engine/internal/float_buffer.h"
#include "pdc/engine/internal/packed_matrix.h"
#include "pdc/engine/model_config.h"
#include "pdc/engine/model_weights.h"

namespace ems::pdc::internal {

struct AttentionWeights {
  FloatBuffer norm;      // [hidden]
  PackedMatrix q_down;   // hidden → q_lora; empty without
  FloatBuffer q_norm;    // [q_lora]
  PackedMatrix q;        // hidden or q_lora → heads × (nope, rope)
  PackedMatrix kv_down;  // hidden → latent, rope; empty where another layer's are read
  FloatBuffer kv_norm;   // [latent]
  std::vector<PackedMatrix> absorb;  // of each head: nope → latent
  std::vector<PackedMatrix> value;   // of each head: latent → value
  PackedMatrix out;                  // heads × value → hidden
};

struct FeedForwardWeights {
  PackedMatrix gate_up;  // hidden → gate, up
  PackedMatrix down;     // inside → hidden
  size_t inside() const { return down.k(); }
};

struct LayerWeights {
  AttentionWeights attention;
  FloatBuffer norm;                         // before the feed-forward part
  FeedForwardWeights dense;                 // empty in a layer with experts
  PackedMatrix router;                      // hidden → experts
  std::vector<FeedForwardWeights> experts;  // [experts]
  FeedForwardWeights shared;                // empty: none
};

struct MtpWeights {
  FloatBuffer embedding_norm, hidden_norm;  // [hidden]
  PackedMatrix join;                        // embedding, hidden → hidden
  AttentionWeights attention;               // reads the last layer's cache
  FloatBuffer norm;                         // before the feed-forward part
  FeedForwardWeights dense;
  FloatBuffer final_norm;
};

// Threading: immutable.
struct PackedModel {
  explicit PackedModel(const ModelWeights& weights);

  const ModelConfig config;
  FloatBuffer embedding;  // [vocab][hidden]
  std::vector<LayerWeights> layers;
  FloatBuffer norm;
  PackedMatrix head;     // hidden → vocab
  MtpWeights mtp;        // empty without
  FloatBuffer cos, sin;  // [positions][rope / 2]
};

}  // namespace ems::pdc::internal
