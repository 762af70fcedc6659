#pragma once
// Checks and conversions of the arguments that C callers pass for models, and of the results that
// they get.
//
// All errors are kInvalidArgument and name the argument. Bound: those of ems.h.
#include <functional>
#include <string>
#include <vector>

#include "common/status.h"
#include "ems_model/model_cache.h"
#include "ems_model/tensor_stream.h"
#include "integrations/c/ems.h"
#include "integrations/c/internal/models_core.h"

namespace ems::capi {

ems_models_options DefaultModelsOptions();
ems_model_add_options DefaultModelAddOptions();
ems_model_load_options DefaultModelLoadOptions();
ems_model_tensors DefaultModelTensors();

Result<std::unique_ptr<ModelsCore>> MakeModels(const ems_models_options* given);
Result<model::ModelName> ToModelName(const char* name);
Result<model::AddOptions> ToAddOptions(const ems_model_add_options* given);
// 0: `otherwise`.
Duration TimeoutOr(uint32_t timeout_ms, Duration otherwise);

// The options of a load, copied. `user` stays the caller's.
struct LoadChoice {
  model::LoadOptions options;
  Duration timeout{};
  bool sync = true;
  bool all = true;                 // files
  std::vector<std::string> files;  // else these
  ems_model_on_progress on_progress = nullptr;
  void* user = nullptr;

  bool Wants(std::string_view path) const;
};
Result<LoadChoice> ToLoadChoice(const ems_model_load_options* given);
Result<ems_model_tensors> ToTensors(const ems_model_tensors* given);

// Texts that are too long are cut.
void Tell(const model::ModelInfo& info, ems_model_info* out);
void Tell(const model::PrefetchProgress& progress, ems_model_progress* out);
void Tell(const model::LoadStats& stats, ems_model_stats* out);

}  // namespace ems::capi
