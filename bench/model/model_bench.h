#pragma once
// The experiment behind `ems-bench model`: each strategy in turn, on the same source.
#include <cstdint>
#include <string>
#include <vector>

#include "bench/model/model_instance.h"
#include "common/status.h"

namespace ems::bench {

struct ModelBenchSettings {
  std::string controller;                  // host:port
  std::string program = "/proc/self/exe";  // ems-bench, for the instances
  uint64_t model_bytes = 256'000'000;
  uint64_t source_bytes_per_s = 64'000'000;
  int instances = 8;
  int models = 8;  // that are switched between
  uint64_t switch_model_bytes = 8'000'000;
  int switches = 64;
  int warm_rounds = 3;  // of each instance
  uint64_t seed = 1;
};

// The figures of one strategy.
struct StrategyFigures {
  ModelStrategy strategy = ModelStrategy::kNoCache;
  double cold_seconds = 0;           // until the last instance had the model
  uint64_t source_bytes = 0;         // that the source sent meanwhile
  std::vector<double> warm_seconds;  // of single instances, one after the other; empty: no cache
  double warm_cpu_seconds = 0;       // of the instances, for all of them
  // That hold the model, beside device memory. Of EMS memory of the pool, as the servers say; of
  // local-dram a copy an instance.
  uint64_t dram_bytes = 0;
  int switches = 0, hits = 0;
  std::vector<double> switch_seconds;
};

struct ModelBenchResults {
  uint64_t model_bytes = 0;  // as made
  std::vector<StrategyFigures> strategies;
  double copy_seconds = 0;  // as ModelInstance::Copy, between the warm loads of EMS
};

// DRAM that a pool needs for the models of a run, with headers and rounding.
uint64_t PoolBytesFor(const ModelBenchSettings& settings);

// Every load is compared with what was made. Errors: kFailedPrecondition  the pool is too small
// kDataLoss  wrong bytes    those of the cluster, the disk, an instance
// Cost: about (instances × 2 + 1) × model_bytes / source_bytes_per_s.
Result<ModelBenchResults> RunModelBench(const ModelBenchSettings& settings);

}  // namespace ems::bench
