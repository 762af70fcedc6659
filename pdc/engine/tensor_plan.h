#pragma once
// The tensors of a model with a given configuration: names, shapes and types, in the order of its
// file. Names are those of DeepSeek's checkpoints where these have such a tensor; "model.mtp." is
// our own.
#include <string>
#include <vector>

#include "model_files/format/tensor_table.h"
#include "pdc/engine/model_config.h"

namespace ems::pdc {

struct PlannedTensor {
  std::string name;
  model::DType dtype = model::DType::kF32;
  std::vector<uint64_t> shape;  // [out, in] of a linear layer
  float spread = 0;             // standard deviation of made-up weights; 0: all of them 1
  // INT8 [out, in] has its scales in "<name>_scale", F32 [out], which follows it in the plan.
  bool is_scale = false;
};

// `config` has passed CheckConfig. Cost: O(tensors), some thousand.
std::vector<PlannedTensor> PlanTensors(const ModelConfig& config);
// Of all tensors but scales.
uint64_t ParametersOf(const ModelConfig& config);
// Those that a token meets: of the routed experts, as many as are chosen; without the embedding.
uint64_t ActiveParametersOf(const ModelConfig& config);

}  // namespace ems::pdc
