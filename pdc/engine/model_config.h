#pragma once
// The configuration of a model: a decoder-only transformer with latent attention (MLA) and a
// mixture of experts, as in DeepSeek-V3, only smaller. The names of fields are those of the papers.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"

namespace ems::pdc {

enum class WeightDtype : uint8_t { kF32, kBf16, kInt8 };  // INT8: linear layers, a scale a channel
enum class RouterKind : uint8_t { kSigmoid, kSoftmax };
std::string_view NameOf(WeightDtype dtype);  // "f32", "bf16", "int8"
std::string_view NameOf(RouterKind kind);    // "sigmoid", "softmax"

// Threading: a value.
struct ModelConfig {
  std::string name = "tiny";
  uint32_t vocab = 264;  // 256 bytes and the special tokens of tokenizer.h
  uint32_t layers = 3;
  uint32_t hidden = 64;
  uint32_t heads = 4;
  uint32_t nope_dim = 16;     // of a head's query and key, without position
  uint32_t rope_dim = 16;     // of a head's query, and of the key that all heads share
  uint32_t value_dim = 16;    // of a head
  uint32_t latent_dim = 32;   // what a token's keys and values are made from; this is cached
  uint32_t q_lora_dim = 0;    // 0: queries come from the hidden state directly
  uint32_t dense_layers = 1;  // the first ones have a plain feed-forward part
  uint32_t dense_dim = 128;   // of its inside
  uint32_t experts = 8;       // of every other layer; 0: all layers are dense
  uint32_t experts_per_token = 2;
  uint32_t shared_experts = 1;  // every token goes through; kept as one of their summed width
  uint32_t expert_dim = 32;     // inside of one expert
  RouterKind router = RouterKind::kSigmoid;
  float routed_scale = 1.0F;  // of the routed experts' sum
  bool mtp = false;           // a head that guesses the token after the next
  uint32_t positions_max = 8192;
  float rope_base = 10000.0F;
  float norm_epsilon = 1e-6F;
  WeightDtype weights = WeightDtype::kBf16;
  uint64_t seed = 1;

  friend bool operator==(const ModelConfig&, const ModelConfig&) = default;

  uint32_t query_dim() const { return nope_dim + rope_dim; }    // of one head
  uint32_t cache_dim() const { return latent_dim + rope_dim; }  // elements a token and layer
  bool is_dense(uint32_t layer) const { return layer < dense_layers || experts == 0; }
  uint32_t shared_dim() const { return shared_experts * expert_dim; }
};

// Errors: kInvalidArgument  names the field, its value and what it may be
Status CheckConfig(const ModelConfig& config);

// "tiny" (some 0.2 M parameters, for tests), "small" (6 M), "base" (30 M), "large" (110 M).
// Errors: kNotFound  says which there are
Result<ModelConfig> PresetConfig(std::string_view name);
std::vector<std::string_view> PresetNames();

// One line of JSON; equal configs give equal texts. It is what a model file's metadata holds.
std::string ToJson(const ModelConfig& config);
// Errors: kInvalidArgument  no such JSON, a field missing, unknown or of another kind, or what
// CheckConfig says
Result<ModelConfig> ParseConfig(std::string_view json);

}  // namespace ems::pdc
