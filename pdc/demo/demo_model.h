#pragma once
// The demo model: the weights that pdc/demo/train.py made, as a safetensors file inside the
// program.
#include <string_view>

#include "common/bytes.h"

namespace ems::pdc {

// The preset that means it, beside the synthetic ones of PresetNames().
inline constexpr std::string_view kDemoPreset = "demo";

// The file, for ModelWeights::FromBytes. Valid for ever.
ConstBytes DemoModelFile();

}  // namespace ems::pdc
