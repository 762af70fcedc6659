#pragma once
// Every metric of mp-server, declared once. Logic calls the verbs.
#include <array>
#include <map>
#include <string>

#include "common/guarded.h"
#include "common/metrics.h"
#include "fabric/rpc_server.h"
#include "mp_server/kv_events/event_publisher.h"
#include "mp_server/object_store.h"
#include "mp_server/ownership.h"
#include "mp_server/segment_pool.h"
#include "mp_server/shm_service.h"
#include "mp_server/ssd/ssd_tier.h"
#include "proto/data_plane.h"

namespace ems::server {

// Threading: thread-safe.
class ServerMetrics final {
 public:
  explicit ServerMetrics(MetricsRegistry* registry);

  // One request, or one item of a Multi request, answered.
  void OnAnswer(wire::Op op, wire::WireStatus status) const {
    answers_[static_cast<size_t>(op)][static_cast<size_t>(status)].Add();
  }
  void OnRead(uint64_t bytes, bool from_ssd) const {
    (from_ssd ? ssd_read_bytes_ : read_bytes_).Add(static_cast<double>(bytes));
    if (from_ssd) ssd_hits_.Add();
  }
  void OnStored(uint64_t bytes) const { stored_bytes_.Add(static_cast<double>(bytes)); }
  void OnDeduplicated(uint64_t bytes) const { deduplicated_bytes_.Add(static_cast<double>(bytes)); }
  void OnHeartbeat(bool ok) const { (ok ? heartbeats_ok_ : heartbeats_failed_).Add(); }
  const fabric::RpcMetrics& rpc() const { return rpc_; }
  const ShmMetrics& shm() const { return shm_; }
  const kv_events::EventMetrics& kv_events() const { return kv_events_; }

  // Objects asked for by Get and MultiGet since the start, and how many of them were here.
  struct HitCounts {
    uint64_t gets = 0;
    uint64_t hits = 0;
    uint64_t ssd_hits = 0;  // of them, those that were read from the SSD
  };
  HitCounts hit_counts() const;

  // Sets the gauges; before each rendering.
  void Refresh(ObjectStore* store, SegmentPool* pool, const Ownership& ownership);
  // The same for the SSD tier.
  void Refresh(const ssd::TierStats& tier);

 private:
  struct NamespaceGauges {
    Gauge objects, objects_max, count_evictions, value_bytes, quota_bytes, segment_bytes,
        evicted_objects, evicted_bytes, damaged_objects;
    Gauge touches, parked_bytes, shared_index_bytes, shared_index_left_out;
  };
  NamespaceGauges MakeGauges(const std::string& name);
  struct SsdGauges {
    Gauge state, capacity_bytes, disk_bytes, objects, value_bytes, dirty_bytes, written_objects,
        written_bytes, log_bytes, shed_objects, failed_objects, reclaimed_regions,
        reclaimed_objects, moved_objects, dropped_damaged, reads, reads_refused, reads_failed,
        degraded_times, scrub_passes, scrubbed_bytes;
  };
  void MakeSsdGauges();
  void MakeEventCounters();

  MetricsRegistry* registry_;
  fabric::RpcMetrics rpc_;
  ShmMetrics shm_;
  kv_events::EventMetrics kv_events_;
  std::array<std::array<Counter, wire::kWireStatusMax + 1>, wire::kOpMax + 1> answers_;
  Counter read_bytes_, ssd_read_bytes_, ssd_hits_, stored_bytes_, deduplicated_bytes_,
      heartbeats_ok_, heartbeats_failed_;
  Gauge pool_bytes_, pool_used_bytes_, pool_ready_bytes_, pool_kept_bytes_, huge_page_fallback_,
      pool_refused_;
  SsdGauges ssd_;
  Gauge view_term_, view_epoch_, owned_slots_, lease_valid_;
  Guarded<std::map<std::string, NamespaceGauges>>
      namespaces_;  // bounded by the namespaces that exist
};

}  // namespace ems::server
