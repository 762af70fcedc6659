#pragma once
// Table 2 of the paper (CM §4.4.3) from its own constants: how long many instances of a large model
// take to start, and to switch, by strategy.
#include <cstdint>

namespace ems::bench {

struct ModelCostInput {
  double model_gb = 671;         // INT8
  double bucket_gb_per_s = 2.5;  // OBS, shared by all
  int instances = 8;
  int models = 8;  // that are switched between
  // Fitted to one number of the table, 320 s for one load of the model: what of the bucket's
  // bandwidth arrives.
  double bucket_share = 671.0 / 2.5 / 320;
  // Given: DRAM to NPU memory.
  double warm_seconds = 5;
};

struct ModelCost {
  double cold_seconds = 0;    // all instances at once
  double warm_seconds = 0;    // 0: there is no cache
  double dram_models = 0;     // DRAM taken, in models
  double hit_rate = 0;        // of switches
  double switch_seconds = 0;  // mean
};

ModelCost CostWithoutCache(const ModelCostInput& input);
ModelCost CostWithLocalDram(const ModelCostInput& input);
ModelCost CostWithEms(const ModelCostInput& input);

}  // namespace ems::bench
