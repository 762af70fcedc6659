#pragma once
// State that the threads of this server's model caching share: the versions that it works at, and
// the clients by which they ask others.
//
// Invariant: under the lock there is no I/O and no call into the store; pins are dropped after it.
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <string>

#include "cluster/models_client.h"
#include "cluster/view_cache.h"
#include "common/guarded.h"
#include "common/metrics.h"
#include "common/thread_pool.h"
#include "mp_server/lease/ownership.h"
#include "mp_server/models/model_metrics.h"
#include "mp_server/models/model_pull.h"
#include "mp_server/models/model_sources.h"
#include "mp_server/models/orphaned_blocks.h"
#include "mp_server/models/pull_schedule.h"
#include "mp_server/store/tiered_store.h"

namespace ems::server {

// Threading: thread-safe.
struct PullTable {
  struct Options {
    std::string controller;
    uint64_t boot_id = 0;
    TieredStore* store = nullptr;
    const Ownership* ownership = nullptr;
    ViewCache* views = nullptr;
    MetricsRegistry* metrics = nullptr;
    uint32_t pulls_max = 8;
    ModelSources::Options sources;
  };
  struct State {
    explicit State(uint32_t pulls_max) : schedule(pulls_max) {}
    PullSchedule::Pulls pulls;
    PullSchedule schedule;
    bool stopping = false;
    bool report_due = false;
  };

  // All pointers must outlive it.
  explicit PullTable(const Options& options_in)
      : options(options_in),
        counters(options.metrics),
        models(options.controller, options.views),
        sources(options.sources),
        state(std::in_place, options.pulls_max) {}

  // Calls use(ModelPull&) under the lock. False: there is nothing to do for that version any more.
  template <typename Use>
  bool With(uint32_t id, Use&& use) {
    auto locked = state.Lock();
    const auto pull = locked->pulls.find(id);
    if (pull == locked->pulls.end()) return false;
    use(*pull->second);
    return true;
  }
  // There may be more to do, and to report.
  void Wake() {
    auto locked = state.Lock();
    locked->report_due = true;
    locked.Unlock();
    work.notify_all();
    reports.notify_all();
  }
  // Ends all waits, calls and reads, for good.
  void Stop() {
    stop.Set();
    models.Close();
    sources.Close();
    auto locked = state.Lock();
    locked->stopping = true;
    locked.Unlock();
    for (std::condition_variable* one : {&work, &reports, &unverified}) one->notify_all();
  }

  const Options options;
  StopFlag stop;
  ModelMetrics counters;
  ModelsClient models;
  ModelSources sources;
  OrphanedBlocks orphans;
  Guarded<State> state;
  std::atomic<uint64_t> reports_told{0};  // so that one that is overtaken is known as such
  std::condition_variable work, reports;
  std::condition_variable unverified;  // a version with files that are not compared yet
};

}  // namespace ems::server
