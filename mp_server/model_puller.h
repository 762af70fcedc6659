#pragma once
// This server's part of model caching: follows the controller's list of models, and for each
// version that is prefetched or pinned brings this server's own blocks into DRAM.
//
// What is to be done follows from the list and the view alone, so nothing is lost when this server,
// another one or the controller is restarted. Bound: pulls_max blocks at a time, each with a buffer
// of its size; a version's manifest only while there is something to do for it.
#include <bitset>
#include <cstdint>
#include <memory>
#include <string>

#include "common/clock.h"
#include "common/ids.h"
#include "common/metrics.h"
#include "mp_controller/view/view_cache.h"
#include "mp_server/model_sources.h"
#include "mp_server/ownership.h"
#include "mp_server/tiered_store.h"

namespace ems::server {

// Threading: thread-safe.
class ModelPuller final {
 public:
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
  // Begins to follow. All pointers must outlive it.
  explicit ModelPuller(const Options& options);
  // Before the store drops the objects of slots that are lost, or come back empty: blocks of
  // versions that are being brought in are kept for a while (kept_blocks.h).
  // Cost: O(blocks of those versions); does not wait.
  void KeepBlocks(const std::bitset<kSlotCount>& slots);
  // Ends what is under way.
  ~ModelPuller();
  ModelPuller(const ModelPuller&) = delete;
  ModelPuller& operator=(const ModelPuller&) = delete;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ems::server
