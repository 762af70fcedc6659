#pragma once
// Versions of models as people and scripts read them. Pure: what the SDK said goes in, text or JSON
// comes out.
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "ems_model/model_cache.h"

namespace ems::emsctl {

// One line a version.
std::string ModelsText(const std::vector<model::ModelInfo>& models);
nlohmann::ordered_json ModelJson(const model::ModelInfo& info);

// All about one version; `manifest` adds its files.
std::string ModelText(const model::ModelInfo& info, const model::Manifest& manifest);
nlohmann::ordered_json ManifestJson(const model::Manifest& manifest);

std::string CheckText(const model::CheckResult& check);
nlohmann::ordered_json CheckJson(const model::CheckResult& check);

// What a finished job has done: "1.5 GiB in 3.2 s, 1 GiB from the source, …".
std::string JobText(const model::ModelInfo& info);
std::string LoadText(const model::LoadStats& stats);
nlohmann::ordered_json LoadJson(const model::LoadStats& stats);

// "3.2 s", "5 min", "2 h", "3 d".
std::string TimeText(Duration time);

}  // namespace ems::emsctl
