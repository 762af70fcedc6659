#pragma once
// The object behind an ems_models handle: a cache of models, and the threads of its submitted
// calls.
//
// Invariant: calls use it by address; it ends, on a caller's thread, when all of them have ended.
#include <memory>

#include "common/thread_pool.h"
#include "ems_model/model_cache.h"
#include "integrations/c/ems.h"
#include "integrations/c/internal/fork_stamp.h"

namespace ems::capi {

struct ModelsCore {
  ModelsCore(model::ModelCacheOptions options, size_t threads, size_t queue_max)
      : cache(std::move(options)), pool("ems-models", threads, queue_max) {}
  // Submitted calls end as soon as they look.
  ~ModelsCore() { stop.Set(); }

  const ForkStamp made_here;
  StopFlag stop;  // set: nothing is to be begun or gone on with
  model::ModelCache cache;
  ThreadPool pool;  // goes first, and runs what it took
};

}  // namespace ems::capi

struct ems_models {
  std::unique_ptr<ems::capi::ModelsCore> core;
};
