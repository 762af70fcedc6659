#pragma once
// Every metric of mp-server, declared once. Logic calls the verbs.
#include <array>
#include <map>
#include <string>

#include "common/guarded.h"
#include "common/metrics.h"
#include "fabric/rpc_server.h"
#include "mp_server/object_store.h"
#include "mp_server/ownership.h"
#include "mp_server/segment_pool.h"
#include "mp_server/shm_service.h"
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
  void OnRead(uint64_t bytes) const { read_bytes_.Add(static_cast<double>(bytes)); }
  void OnStored(uint64_t bytes) const { stored_bytes_.Add(static_cast<double>(bytes)); }
  void OnDeduplicated(uint64_t bytes) const { deduplicated_bytes_.Add(static_cast<double>(bytes)); }
  void OnHeartbeat(bool ok) const { (ok ? heartbeats_ok_ : heartbeats_failed_).Add(); }
  const fabric::RpcMetrics& rpc() const { return rpc_; }
  const ShmMetrics& shm() const { return shm_; }

  // Objects asked for by Get and MultiGet since the start, and how many of them were here.
  struct HitCounts {
    uint64_t gets = 0;
    uint64_t hits = 0;
  };
  HitCounts hit_counts() const;

  // Sets the gauges; before each rendering.
  void Refresh(ObjectStore* store, SegmentPool* pool, const Ownership& ownership);

 private:
  struct NamespaceGauges {
    Gauge objects, objects_max, count_evictions, value_bytes, quota_bytes, segment_bytes,
        evicted_objects, evicted_bytes;
    Gauge touches, parked_bytes, shared_index_bytes, shared_index_left_out;
  };
  NamespaceGauges MakeGauges(const std::string& name);

  MetricsRegistry* registry_;
  fabric::RpcMetrics rpc_;
  ShmMetrics shm_;
  std::array<std::array<Counter, wire::kWireStatusMax + 1>, 16> answers_;
  Counter read_bytes_, stored_bytes_, deduplicated_bytes_, heartbeats_ok_, heartbeats_failed_;
  Gauge pool_bytes_, pool_used_bytes_, pool_ready_bytes_, pool_kept_bytes_, huge_page_fallback_,
      pool_refused_;
  Gauge view_term_, view_epoch_, owned_slots_, lease_valid_;
  Guarded<std::map<std::string, NamespaceGauges>>
      namespaces_;  // bounded by the namespaces that exist
};

}  // namespace ems::server
