#include "pdc/daemon/loop_model.h"

#include <filesystem>

#include "ems_model/model_cache.h"
#include "pdc/demo/demo_model.h"
#include "pdc/engine/model_weights.h"
#include "pdc/engine/weight_maker.h"
#include "proto/config.pb.h"

namespace ems::pdc {
namespace {

constexpr Duration kLoadTimeout = std::chrono::minutes(5);

Result<ModelWeights> FromPool(const config::PdcConfig& config) {
  EMS_ASSIGN_OR_RETURN(const model::ModelName name, model::ModelName::Parse(config.model().ems()));
  model::ModelCacheOptions options;
  options.controller = config.pool().controller();
  model::ModelCache cache(options);
  return ModelWeights::FromLoad([&](model::LoadTarget* target) {
    return cache.Load(name, target, {}, Deadline::After(kLoadTimeout)).status();
  });
}

Result<ModelWeights> Demo(bool mtp) {
  EMS_ASSIGN_OR_RETURN(ModelWeights weights,
                       ModelWeights::FromBytes(DemoModelFile(), nullptr, "the demo model"));
  if (!mtp) weights.DropMtp();
  return weights;
}

Result<ModelConfig> PresetOf(const config::PdcModelConfig& wanted) {
  EMS_ASSIGN_OR_RETURN(ModelConfig config, PresetConfig(wanted.preset()));
  config.seed = wanted.seed();
  config.mtp = wanted.mtp() == "on";
  config.positions_max = wanted.positions_max();
  config.weights = wanted.dtype() == "f32"    ? WeightDtype::kF32
                   : wanted.dtype() == "int8" ? WeightDtype::kInt8
                                              : WeightDtype::kBf16;
  return config;
}

Result<ModelWeights> Load(const config::PdcConfig& config) {
  EMS_RETURN_IF_ERROR(CheckLoopModel(config));
  const config::PdcModelConfig& wanted = config.model();
  if (!wanted.file().empty()) return ModelWeights::FromFile(wanted.file());
  if (!wanted.ems().empty()) return FromPool(config);
  if (wanted.preset() == kDemoPreset) return Demo(wanted.mtp() == "on");
  EMS_ASSIGN_OR_RETURN(const ModelConfig preset, PresetOf(wanted));
  return ModelWeights::Make(preset);
}

}  // namespace

Status CheckLoopModel(const config::PdcConfig& config) {
  const config::PdcModelConfig& wanted = config.model();
  if (wanted.ems().empty()) return OkStatus();
  if (!wanted.file().empty()) {
    return Error(StatusCode::kInvalidArgument,
                 "model.file and model.ems are both set: one of them");
  }
  if (config.pool().controller().empty()) {
    return Error(StatusCode::kInvalidArgument,
                 "model.ems is {}, and pool.controller is not set: it says where the pool is",
                 wanted.ems());
  }
  return Prefixed(model::ModelName::Parse(wanted.ems()).status(), "model.ems");
}

std::string ServedModelName(const config::PdcConfig& config) {
  const config::PdcModelConfig& wanted = config.model();
  if (!wanted.file().empty()) return std::filesystem::path(wanted.file()).stem().string();
  if (!wanted.ems().empty()) return wanted.ems().substr(0, wanted.ems().find('@'));
  return "ems-" + wanted.preset();
}

Status WriteLoopModel(const config::PdcConfig& config, const std::string& path) {
  if (!config.model().file().empty() || !config.model().ems().empty())
    return Error(StatusCode::kInvalidArgument, "weights are made up of a preset alone");
  EMS_ASSIGN_OR_RETURN(const ModelConfig preset, PresetOf(config.model()));
  return WriteWeights(preset, path);
}

Result<std::shared_ptr<const Model>> LoadLoopModel(const config::PdcConfig& config) {
  EMS_ASSIGN_OR_RETURN(const ModelWeights weights, Load(config));
  return Model::Make(weights);
}

}  // namespace ems::pdc
