#include "pdc/engine/model_config.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "common/bytes.h"

namespace ems::pdc {
namespace {

using Json = nlohmann::ordered_json;

constexpr uint32_t kLanes = 16;        // sums of norms have so many parts
constexpr uint32_t kDimMax = 1 << 16;  // of anything
constexpr uint32_t kPositionsMax = 1 << 22;

template <typename... Args>
Status Bad(fmt::format_string<Args...> format, Args&&... args) {
  return Error(StatusCode::kInvalidArgument,
               std::string_view(fmt::format(format, std::forward<Args>(args)...)));
}

// Every number of a config with its name and bounds: what is checked, written and read.
struct Field {
  const char* name;
  uint32_t ModelConfig::*value;
  uint32_t min;
  uint32_t max;
  uint32_t multiple;
};
constexpr Field kFields[] = {
    {"vocab", &ModelConfig::vocab, 264, kDimMax, 1},
    {"layers", &ModelConfig::layers, 1, 256, 1},
    {"hidden", &ModelConfig::hidden, kLanes, kDimMax, kLanes},
    {"heads", &ModelConfig::heads, 1, 256, 1},
    {"nope_dim", &ModelConfig::nope_dim, 1, 1024, 1},
    {"rope_dim", &ModelConfig::rope_dim, 2, 1024, 2},
    {"value_dim", &ModelConfig::value_dim, 1, 1024, 1},
    {"latent_dim", &ModelConfig::latent_dim, kLanes, 4096, kLanes},
    {"q_lora_dim", &ModelConfig::q_lora_dim, 0, kDimMax, kLanes},
    {"dense_layers", &ModelConfig::dense_layers, 0, 256, 1},
    {"dense_dim", &ModelConfig::dense_dim, kLanes, kDimMax, kLanes},
    {"experts", &ModelConfig::experts, 0, 4096, 1},
    {"experts_per_token", &ModelConfig::experts_per_token, 1, 64, 1},
    {"shared_experts", &ModelConfig::shared_experts, 0, 16, 1},
    {"expert_dim", &ModelConfig::expert_dim, kLanes, 4096, kLanes},
    {"positions_max", &ModelConfig::positions_max, 1, kPositionsMax, 1},
};

struct RealField {
  const char* name;
  float ModelConfig::*value;
  float min;
  float max;
};
constexpr RealField kRealFields[] = {
    {"routed_scale", &ModelConfig::routed_scale, 1e-3F, 1e3F},
    {"rope_base", &ModelConfig::rope_base, 1.0F, 1e9F},
    {"norm_epsilon", &ModelConfig::norm_epsilon, 1e-12F, 1e-2F},
};

constexpr WeightDtype kWeightDtypes[] = {WeightDtype::kF32, WeightDtype::kBf16, WeightDtype::kInt8};
constexpr RouterKind kRouterKinds[] = {RouterKind::kSigmoid, RouterKind::kSoftmax};

ModelConfig Tiny() { return {}; }

ModelConfig Small() {
  ModelConfig config;
  config.name = "small";
  config.layers = 6;
  config.hidden = 256;
  config.heads = 8;
  config.nope_dim = 32;
  config.value_dim = 32;
  config.latent_dim = 64;
  config.dense_dim = 512;
  config.experts = 16;
  config.expert_dim = 64;
  return config;
}

ModelConfig Base() {
  ModelConfig config = Small();
  config.name = "base";
  config.layers = 8;
  config.hidden = 384;
  config.dense_dim = 1024;
  config.experts = 24;
  config.experts_per_token = 4;
  config.expert_dim = 128;
  config.positions_max = 32768;
  return config;
}

ModelConfig Large() {
  ModelConfig config = Base();
  config.name = "large";
  config.layers = 12;
  config.hidden = 640;
  config.heads = 10;
  config.rope_dim = 32;
  config.latent_dim = 128;
  config.q_lora_dim = 256;
  config.dense_dim = 1600;
  config.experts = 28;
  config.expert_dim = 160;
  return config;
}

using Preset = std::pair<std::string_view, ModelConfig (*)()>;
constexpr Preset kPresets[] = {{"tiny", Tiny}, {"small", Small}, {"base", Base}, {"large", Large}};

Status ReadField(const std::string& name, const Json& value, ModelConfig* config) {
  for (const Field& field : kFields) {
    if (name != field.name) continue;
    if (!value.is_number_unsigned() || value.get<uint64_t>() > UINT32_MAX)
      return Bad("config: {} is {}, not a whole number", name, value.dump());
    config->*field.value = value.get<uint32_t>();
    return OkStatus();
  }
  for (const RealField& field : kRealFields) {
    if (name != field.name) continue;
    if (!value.is_number()) return Bad("config: {} is {}, not a number", name, value.dump());
    config->*field.value = value.get<float>();
    return OkStatus();
  }
  if (name == "mtp" && value.is_boolean()) {
    config->mtp = value.get<bool>();
    return OkStatus();
  }
  if (name == "seed" && value.is_number_unsigned()) {
    config->seed = value.get<uint64_t>();
    return OkStatus();
  }
  if (name == "name" && value.is_string()) {
    config->name = value.get<std::string>();
    return OkStatus();
  }
  for (const WeightDtype dtype : kWeightDtypes) {
    if (name != "weights" || value != std::string(NameOf(dtype))) continue;
    config->weights = dtype;
    return OkStatus();
  }
  for (const RouterKind kind : kRouterKinds) {
    if (name != "router" || value != std::string(NameOf(kind))) continue;
    config->router = kind;
    return OkStatus();
  }
  return Bad("config: {} cannot be {}", Printable(name), Printable(value.dump()));
}

}  // namespace

std::string_view NameOf(WeightDtype dtype) {
  switch (dtype) {
    case WeightDtype::kF32:
      return "f32";
    case WeightDtype::kBf16:
      return "bf16";
    case WeightDtype::kInt8:
      return "int8";
  }
  return "?";
}

std::string_view NameOf(RouterKind kind) {
  return kind == RouterKind::kSigmoid ? "sigmoid" : "softmax";
}

Status CheckConfig(const ModelConfig& config) {
  for (const Field& field : kFields) {
    const uint32_t value = config.*field.value;
    if (value < field.min || value > field.max)
      return Bad("config: {} is {}, it has to be {} to {}", field.name, value, field.min,
                 field.max);
    if (value % field.multiple != 0)
      return Bad("config: {} is {}, it has to be a multiple of {}", field.name, value,
                 field.multiple);
  }
  for (const RealField& field : kRealFields) {
    const float value = config.*field.value;
    if (!(value >= field.min && value <= field.max))
      return Bad("config: {} is {}, it has to be {} to {}", field.name, value, field.min,
                 field.max);
  }
  if (config.dense_layers > config.layers)
    return Bad("config: dense_layers is {} of {} layers", config.dense_layers, config.layers);
  if (config.experts > 0 && config.experts_per_token > config.experts)
    return Bad("config: experts_per_token is {}, there are {} experts", config.experts_per_token,
               config.experts);
  if (config.name.empty() || config.name.size() > 64)
    return Bad("config: name has {} characters, it has to have 1 to 64", config.name.size());
  return OkStatus();
}

Result<ModelConfig> PresetConfig(std::string_view name) {
  std::string known;
  for (const Preset& preset : kPresets) {
    if (name == preset.first) return preset.second();
    known += (known.empty() ? "" : ", ") + std::string(preset.first);
  }
  return Error(StatusCode::kNotFound, "no model '{}'; there are {}", Printable(name), known);
}

std::vector<std::string_view> PresetNames() {
  std::vector<std::string_view> names;
  for (const Preset& preset : kPresets) names.push_back(preset.first);
  return names;
}

std::string ToJson(const ModelConfig& config) {
  Json json;
  json["name"] = config.name;
  for (const Field& field : kFields) json[field.name] = config.*field.value;
  for (const RealField& field : kRealFields) json[field.name] = config.*field.value;
  json["router"] = NameOf(config.router);
  json["mtp"] = config.mtp;
  json["weights"] = NameOf(config.weights);
  json["seed"] = config.seed;
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Result<ModelConfig> ParseConfig(std::string_view json) {
  const Json parsed = Json::parse(json, nullptr, false);
  if (!parsed.is_object()) return Bad("config: no JSON object: {}", Printable(json));
  ModelConfig config;
  for (const auto& [name, value] : parsed.items())
    EMS_RETURN_IF_ERROR(ReadField(name, value, &config));
  const size_t fields = std::size(kFields) + std::size(kRealFields) + 5;
  if (parsed.size() != fields) return Bad("config: has {} of {} fields", parsed.size(), fields);
  EMS_RETURN_IF_ERROR(CheckConfig(config));
  return config;
}

}  // namespace ems::pdc
