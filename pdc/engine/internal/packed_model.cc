#include "pdc/engine/internal/packed_model.h"

#include <cmath>
#include <cstring>
#include <string>

namespace ems::pdc::internal {
namespace {

using Tensor = ModelWeights::Tensor;

class Packer final {
 public:
  explicit Packer(const ModelWeights& weights) : weights_(weights), config_(weights.config()) {}

  FloatBuffer Floats(const std::string& name) const {
    const Tensor& tensor = weights_.tensor(name + ".weight");
    const bool narrow = tensor.dtype == model::DType::kBF16;
    FloatBuffer floats(tensor.bytes.size() / (narrow ? sizeof(uint16_t) : sizeof(float)));
    for (size_t i = 0; i < floats.size(); ++i) {
      if (narrow) {
        uint16_t bits = 0;
        std::memcpy(&bits, tensor.bytes.data() + i * sizeof bits, sizeof bits);
        floats.data()[i] = FromBf16(bits);
      } else {
        std::memcpy(floats.data() + i, tensor.bytes.data() + i * sizeof(float), sizeof(float));
      }
    }
    return floats;
  }

  // [out, in] → columns: out, k: in.
  MatrixPart Part(const std::string& name) const {
    const Tensor& tensor = weights_.tensor(name + ".weight");
    MatrixPart part;
    part.data = tensor.bytes.data();
    part.dtype = tensor.dtype;
    part.columns = tensor.shape[0];
    part.column_stride = tensor.shape[1];
    if (tensor.dtype == model::DType::kI8)
      part.scales = weights_.tensor(name + ".weight_scale").bytes.data();
    return part;
  }
  PackedMatrix Matrix(const std::string& name) const {
    return PackedMatrix(weights_.tensor(name + ".weight").shape[1], {Part(name)});
  }

  FeedForwardWeights FeedForward(const std::string& name) const {
    FeedForwardWeights packed;
    packed.gate_up =
        PackedMatrix(config_.hidden, {Part(name + "gate_proj"), Part(name + "up_proj")});
    packed.down = Matrix(name + "down_proj");
    return packed;
  }

  AttentionWeights Attention(const std::string& name, bool caches) const {
    AttentionWeights packed;
    packed.norm = Floats(name + "input_layernorm");
    const std::string self = name + "self_attn.";
    if (config_.q_lora_dim == 0) {
      packed.q = Matrix(self + "q_proj");
    } else {
      packed.q_down = Matrix(self + "q_a_proj");
      packed.q_norm = Floats(self + "q_a_layernorm");
      packed.q = Matrix(self + "q_b_proj");
    }
    if (caches) {
      packed.kv_down = Matrix(self + "kv_a_proj_with_mqa");
      packed.kv_norm = Floats(self + "kv_a_layernorm");
    }
    Heads(Part(self + "kv_b_proj"), &packed);
    packed.out = Matrix(self + "o_proj");
    return packed;
  }

  LayerWeights Layer(uint32_t layer) const {
    const std::string name = fmt::format("model.layers.{}.", layer);
    LayerWeights packed;
    packed.attention = Attention(name, true);
    packed.norm = Floats(name + "post_attention_layernorm");
    if (config_.is_dense(layer)) {
      packed.dense = FeedForward(name + "mlp.");
      return packed;
    }
    packed.router = Matrix(name + "mlp.gate");
    for (uint32_t expert = 0; expert < config_.experts; ++expert)
      packed.experts.push_back(FeedForward(fmt::format("{}mlp.experts.{}.", name, expert)));
    if (config_.shared_experts > 0) packed.shared = FeedForward(name + "mlp.shared_experts.");
    return packed;
  }

  MtpWeights Mtp() const {
    MtpWeights packed;
    packed.embedding_norm = Floats("model.mtp.enorm");
    packed.hidden_norm = Floats("model.mtp.hnorm");
    packed.join = Matrix("model.mtp.eh_proj");
    packed.attention = Attention("model.mtp.", false);
    packed.norm = Floats("model.mtp.post_attention_layernorm");
    packed.dense = FeedForward("model.mtp.mlp.");
    packed.final_norm = Floats("model.mtp.norm");
    return packed;
  }

  void Rotations(FloatBuffer* cos, FloatBuffer* sin) const {
    const size_t half = config_.rope_dim / 2;
    *cos = FloatBuffer(config_.positions_max * half);
    *sin = FloatBuffer(config_.positions_max * half);
    for (size_t i = 0; i < half; ++i) {
      const double frequency =
          std::pow(static_cast<double>(config_.rope_base),
                   -2.0 * static_cast<double>(i) / static_cast<double>(config_.rope_dim));
      for (size_t position = 0; position < config_.positions_max; ++position) {
        const double angle = static_cast<double>(position) * frequency;
        cos->data()[position * half + i] = static_cast<float>(std::cos(angle));
        sin->data()[position * half + i] = static_cast<float>(std::sin(angle));
      }
    }
  }

 private:
  // kv_b_proj is [heads × (nope, value), latent]. Its nope rows are absorbed into the query: they
  // are multiplied from the other side.
  void Heads(const MatrixPart& whole, AttentionWeights* packed) const {
    const size_t size = whole.dtype == model::DType::kBF16 ? sizeof(uint16_t) : sizeof(float);
    const size_t latent = config_.latent_dim;
    for (size_t head = 0; head < config_.heads; ++head) {
      MatrixPart absorb = whole;
      absorb.data += head * (config_.nope_dim + config_.value_dim) * latent * size;
      MatrixPart value = absorb;
      value.data += config_.nope_dim * latent * size;
      absorb.columns = latent;
      absorb.column_stride = 1;
      absorb.k_stride = latent;
      value.columns = config_.value_dim;
      packed->absorb.emplace_back(config_.nope_dim, std::vector<MatrixPart>{absorb});
      packed->value.emplace_back(latent, std::vector<MatrixPart>{value});
    }
  }

  const ModelWeights& weights_;
  const ModelConfig& config_;
};

}  // namespace

PackedModel::PackedModel(const ModelWeights& weights) : config(weights.config()) {
  const Packer packer(weights);
  embedding = packer.Floats("model.embed_tokens");
  for (uint32_t layer = 0; layer < config.layers; ++layer) layers.push_back(packer.Layer(layer));
  norm = packer.Floats("model.norm");
  head = packer.Matrix("lm_head");
  if (config.mtp) mtp = packer.Mtp();
  packer.Rotations(&cos, &sin);
}

}  // namespace ems::pdc::internal
