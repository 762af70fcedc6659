#pragma once
// The model that a process of the serving loop computes with, as its configuration says: made up
// from a seed, the trained one of the program, from a file, or from the pool.
#include <memory>
#include <string>

#include "common/status.h"
#include "pdc/engine/engine.h"

namespace ems::config {
class PdcConfig;
}

namespace ems::pdc {

// That the choice is one, and complete.   Errors: kInvalidArgument
Status CheckLoopModel(const config::PdcConfig& config);

// How the API calls it: the preset's name, the file's stem, or the name in the pool.
std::string ServedModelName(const config::PdcConfig& config);

// Blocks for as long as loading takes: a made-up model some ns a weight; one from the pool five
// minutes at most, its source being what it is.
// Errors: kInvalidArgument  two kinds of model at once, a file or config that cannot be
//   kNotFound  no such file, the pool knows no such model    kUnavailable  the pool's controller
//   cannot be reached
Result<std::shared_ptr<const Model>> LoadLoopModel(const config::PdcConfig& config);

// Writes the preset's weights as a safetensors file, which model.file and model.ems can name.
// Errors: kInvalidArgument  the configuration names another kind of model    kInternal  the disk
// refuses
Status WriteLoopModel(const config::PdcConfig& config, const std::string& path);

}  // namespace ems::pdc
