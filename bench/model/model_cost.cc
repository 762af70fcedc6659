#include "bench/model/model_cost.h"

namespace ems::bench {
namespace {

double OneLoad(const ModelCostInput& input) {
  return input.model_gb / (input.bucket_gb_per_s * input.bucket_share);
}

// A switch to a model that is there `hit_rate` of the time.
double Switch(const ModelCostInput& input, double hit_rate) {
  return hit_rate * input.warm_seconds + (1 - hit_rate) * OneLoad(input);
}

}  // namespace

// The bucket's bandwidth is shared: as many loads as there are instances.
ModelCost CostWithoutCache(const ModelCostInput& input) {
  return {.cold_seconds = input.instances * OneLoad(input),
          .warm_seconds = 0,
          .dram_models = 0,
          .hit_rate = 0,
          .switch_seconds = Switch(input, 0)};
}

// Each instance's DRAM holds one of the models, and does not help the others.
ModelCost CostWithLocalDram(const ModelCostInput& input) {
  const double hit_rate = 1.0 / input.models;
  return {.cold_seconds = input.instances * OneLoad(input),
          .warm_seconds = input.warm_seconds,
          .dram_models = static_cast<double>(input.instances),
          .hit_rate = hit_rate,
          .switch_seconds = Switch(input, hit_rate)};
}

// The bucket is read once; the pool of all instances' DRAM holds all models.
ModelCost CostWithEms(const ModelCostInput& input) {
  return {.cold_seconds = OneLoad(input),
          .warm_seconds = input.warm_seconds,
          .dram_models = 1,
          .hit_rate = 1,
          .switch_seconds = Switch(input, 1)};
}

}  // namespace ems::bench
