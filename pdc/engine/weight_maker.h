#pragma once
// Makes a model up: weights that are a function of (seed, tensor, element), the same on every
// machine, as a safetensors file.
#include <cstddef>
#include <string>
#include <vector>

#include "common/status.h"
#include "pdc/engine/model_config.h"

namespace ems::pdc {

// Where a file's metadata holds the config, as ToJson writes it.
inline constexpr char kConfigKey[] = "ems_config";

// The bytes of the file. Equal configs make equal bytes.
// Errors: kInvalidArgument  what CheckConfig says    Cost: about 5 ns an element; the whole file.
Result<std::vector<std::byte>> MakeWeights(const ModelConfig& config);
// The same as a file, written beside `path` and renamed. Errors: also kInternal  the disk refuses
Status WriteWeights(const ModelConfig& config, const std::string& path);

}  // namespace ems::pdc
