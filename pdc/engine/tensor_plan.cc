#include "pdc/engine/tensor_plan.h"

#include <cmath>
#include <string_view>
#include <utility>

namespace ems::pdc {
namespace {

using model::DType;

class Planner final {
 public:
  explicit Planner(const ModelConfig& config) : config_(config) {}

  std::vector<PlannedTensor> Run() {
    Matrix("model.embed_tokens", config_.vocab, config_.hidden, 1.0F);
    for (uint32_t layer = 0; layer < config_.layers; ++layer) {
      const std::string name = fmt::format("model.layers.{}.", layer);
      Attention(name, true);
      if (config_.is_dense(layer)) {
        FeedForward(name + "mlp.", config_.dense_dim);
      } else {
        Experts(name + "mlp.");
      }
    }
    Norm("model.norm", config_.hidden);
    // Twice the usual spread: likely tokens stand out.
    Matrix("lm_head", config_.vocab, config_.hidden, 2.0F / Root(config_.hidden));
    if (config_.mtp) Mtp();
    return std::move(tensors_);
  }

 private:
  static float Root(uint64_t n) { return std::sqrt(static_cast<float>(n)); }

  void Norm(const std::string& name, uint64_t size) {
    tensors_.push_back({name + ".weight", DType::kF32, {size}, 0, false});
  }
  // Stays as it is when linear layers become INT8.
  void Matrix(const std::string& name, uint64_t out, uint64_t in, float spread) {
    const DType dtype = config_.weights == WeightDtype::kF32 ? DType::kF32 : DType::kBF16;
    tensors_.push_back({name + ".weight", dtype, {out, in}, spread, false});
  }
  void Linear(const std::string& name, uint64_t out, uint64_t in, float gain = 1.0F) {
    if (config_.weights != WeightDtype::kInt8) return Matrix(name, out, in, gain / Root(in));
    tensors_.push_back({name + ".weight", DType::kI8, {out, in}, gain / Root(in), false});
    tensors_.push_back({name + ".weight_scale", DType::kF32, {out}, 0, true});
  }

  // `caches`: makes keys and values of its own, rather than reading those of another layer.
  void Attention(const std::string& name, bool caches) {
    const ModelConfig& c = config_;
    Norm(name + "input_layernorm", c.hidden);
    const std::string self = name + "self_attn.";
    const uint64_t queries = uint64_t{c.heads} * c.query_dim();
    // A gain of 2 makes attention choosy: far tokens matter, and not all of them alike.
    if (c.q_lora_dim == 0) {
      Linear(self + "q_proj", queries, c.hidden, 2.0F);
    } else {
      Linear(self + "q_a_proj", c.q_lora_dim, c.hidden);
      Norm(self + "q_a_layernorm", c.q_lora_dim);
      Linear(self + "q_b_proj", queries, c.q_lora_dim, 2.0F);
    }
    if (caches) {
      Linear(self + "kv_a_proj_with_mqa", c.cache_dim(), c.hidden);
      Norm(self + "kv_a_layernorm", c.latent_dim);
    }
    Matrix(self + "kv_b_proj", uint64_t{c.heads} * (c.nope_dim + c.value_dim), c.latent_dim,
           1.0F / Root(c.latent_dim));
    Linear(self + "o_proj", c.hidden, uint64_t{c.heads} * c.value_dim);
    Norm(name + "post_attention_layernorm", c.hidden);
  }
  void FeedForward(const std::string& name, uint64_t inside) {
    Linear(name + "gate_proj", inside, config_.hidden);
    Linear(name + "up_proj", inside, config_.hidden);
    Linear(name + "down_proj", config_.hidden, inside);
  }
  void Experts(const std::string& name) {
    Matrix(name + "gate", config_.experts, config_.hidden, 1.0F / Root(config_.hidden));
    for (uint32_t expert = 0; expert < config_.experts; ++expert)
      FeedForward(fmt::format("{}experts.{}.", name, expert), config_.expert_dim);
    if (config_.shared_experts > 0) FeedForward(name + "shared_experts.", config_.shared_dim());
  }
  void Mtp() {
    Norm("model.mtp.enorm", config_.hidden);
    Norm("model.mtp.hnorm", config_.hidden);
    Linear("model.mtp.eh_proj", config_.hidden, uint64_t{2} * config_.hidden);
    Attention("model.mtp.", false);
    FeedForward("model.mtp.mlp.", config_.dense_dim);
    Norm("model.mtp.norm", config_.hidden);
  }

  const ModelConfig& config_;
  std::vector<PlannedTensor> tensors_;
};

uint64_t ElementsOf(const PlannedTensor& tensor) {
  uint64_t elements = 1;
  for (const uint64_t size : tensor.shape) elements *= size;
  return elements;
}

}  // namespace

std::vector<PlannedTensor> PlanTensors(const ModelConfig& config) { return Planner(config).Run(); }

uint64_t ParametersOf(const ModelConfig& config) {
  uint64_t parameters = 0;
  for (const PlannedTensor& tensor : PlanTensors(config))
    if (!tensor.is_scale) parameters += ElementsOf(tensor);
  return parameters;
}

uint64_t ActiveParametersOf(const ModelConfig& config) {
  const uint64_t expert = uint64_t{3} * config.hidden * config.expert_dim;
  const uint64_t idle = config.experts == 0 ? 0 : config.experts - config.experts_per_token;
  const uint64_t sparse_layers =
      config.experts == 0 ? 0 : uint64_t{config.layers} - config.dense_layers;
  return ParametersOf(config) - sparse_layers * idle * expert -
         uint64_t{config.vocab} * config.hidden;
}

}  // namespace ems::pdc
