#pragma once
// The statistics of a server: the JSON of the Stats operation, and the usage that goes with each
// heartbeat.
#include <string>

#include "cluster/node_usage.h"
#include "mp_server/lease/ownership.h"
#include "mp_server/memory/segment_pool.h"
#include "mp_server/server_metrics.h"
#include "mp_server/ssd/ssd_tier.h"
#include "mp_server/store/object_store.h"

namespace ems::server {

// Threading: thread-safe.
class StatsPage final {
 public:
  // `name` and `boot_id` of the server; `ssd` may be null. All must outlive the page.
  StatsPage(std::string name, uint64_t boot_id, SegmentPool* pool, const ObjectStore* store,
            const ssd::SsdTier* ssd, const Ownership* ownership, const ServerMetrics* metrics)
      : name_(std::move(name)),
        boot_id_(boot_id),
        pool_(*pool),
        store_(*store),
        ssd_(ssd),
        ownership_(*ownership),
        metrics_(*metrics) {}

  std::string Json() const;
  NodeUsage Usage() const;

 private:
  const std::string name_;
  const uint64_t boot_id_;
  SegmentPool& pool_;
  const ObjectStore& store_;
  const ssd::SsdTier* const ssd_;
  const Ownership& ownership_;
  const ServerMetrics& metrics_;
};

}  // namespace ems::server
