#pragma once
// Every metric of mp-server, declared once. Logic calls the verbs.
#include <array>
#include <memory>
#include <set>
#include <span>
#include <string>

#include "common/guarded.h"
#include "common/metrics.h"
#include "fabric/rpc/rpc_options.h"
#include "mp_server/forward/forwarder.h"
#include "mp_server/forward/migrator.h"
#include "mp_server/forward/replicator.h"
#include "mp_server/hot/hot_copier.h"
#include "mp_server/kv_events/event_publisher.h"
#include "mp_server/lease/ownership.h"
#include "mp_server/memory/segment_pool.h"
#include "mp_server/request_latencies.h"
#include "mp_server/restart/take_over.h"
#include "mp_server/shm/shm_service.h"
#include "mp_server/ssd/ssd_tier.h"
#include "mp_server/store/lookup_counters.h"
#include "mp_server/store/object_store.h"
#include "proto/data_plane.h"

namespace ems::server {

// Threading: thread-safe.
class ServerMetrics final {
 public:
  explicit ServerMetrics(MetricsRegistry* registry);

  // Every metric that there may be, for people (MetricsTable).
  static std::string Table();

  // Requests, or items of Multi requests, answered.
  void OnAnswer(wire::Op op, wire::WireStatus status, uint64_t count = 1) const {
    answers_[static_cast<size_t>(op)][static_cast<size_t>(status)].Add(static_cast<double>(count));
  }
  // Of the items of a Multi request.
  void OnAnswers(wire::Op op, std::span<const wire::ItemResult> results) const;
  void OnRead(uint64_t bytes, bool from_ssd) const {
    (from_ssd ? ssd_read_bytes_ : read_bytes_).Add(static_cast<double>(bytes));
    if (from_ssd) ssd_hits_.Add();
  }
  void OnStored(uint64_t bytes) const { stored_bytes_.Add(static_cast<double>(bytes)); }
  void OnDeduplicated(uint64_t bytes) const { deduplicated_bytes_.Add(static_cast<double>(bytes)); }
  // A request that has to wait, and may be refused, for what others are sending or being sent.
  void OnPutHeldBack() const { puts_held_back_.Add(); }
  void OnReadHeldBack() const { reads_held_back_.Add(); }
  void OnGivenBack(uint64_t bytes) const { given_back_bytes_.Add(static_cast<double>(bytes)); }
  // Once: what a restart in place has brought, and what that took.
  void OnTakenOver(const TakeOver::Taken& taken, double seconds) const;
  void OnHeartbeat(bool ok) const { (ok ? heartbeats_ok_ : heartbeats_failed_).Add(); }
  const fabric::RpcMetrics& rpc() const { return rpc_; }
  const ShmMetrics& shm() const { return shm_; }
  const kv_events::EventMetrics& kv_events() const { return kv_events_; }
  const ForwardMetrics& forward() const { return forward_; }
  const MigrateMetrics& migrate() const { return migrate_; }
  const HotMetrics& hot() const { return hot_; }
  const CopyMetrics& copies() const { return copies_; }
  void ShowOpenSlots(uint32_t slots) const;

  void OnServed(wire::Op op, wire::ItemTier tier, bool local, Duration took) const {
    latencies_->Record(op, tier, local, took);
  }
  const LookupCounters& lookups() const { return lookups_; }
  // Objects that were read from the SSD since the start.
  uint64_t ssd_hits() const { return static_cast<uint64_t>(ssd_hits_.value()); }
  // Objects put since the start, also those that were stored already, and their bytes where not.
  uint64_t puts() const;
  uint64_t stored_bytes() const { return static_cast<uint64_t>(stored_bytes_.value()); }

  // Sets the gauges; before each rendering.
  void Refresh(const ObjectStore& store, SegmentPool* pool, const Ownership& ownership);
  // The same for the SSD tier.
  void Refresh(const ssd::TierStats& tier) const;

 private:
  void AddTakeOver();
  // Gauges are looked up by their names each time they are shown.
  void Show(const std::string& name, const std::string& help, uint64_t value,
            const Labels& labels = {}) const;
  // The same for counts that are kept elsewhere: the name gets "_total".
  void Count(const std::string& name, const std::string& help, uint64_t value,
             const Labels& labels = {}) const;
  void ShowView(ViewVersion version, uint64_t owned_slots, bool lease_valid) const;
  void ShowPool(const SegmentPool::Stats& stats) const;
  void ShowNamespace(const NamespaceUsage& one) const;
  void ShowCurve(const NamespaceUsage& one) const;
  void ShowSsdState(uint64_t state) const;
  void ShowSsd(const ssd::TierStats& tier) const;

  MetricsRegistry* registry_;
  LookupCounters lookups_;
  const std::shared_ptr<RequestLatencies> latencies_ = std::make_shared<RequestLatencies>();
  fabric::RpcMetrics rpc_;
  ShmMetrics shm_;
  kv_events::EventMetrics kv_events_;
  ForwardMetrics forward_;
  MigrateMetrics migrate_;
  CopyMetrics copies_;
  HotMetrics hot_;
  std::array<std::array<Counter, wire::kWireStatusMax + 1>, wire::kOpMax + 1> answers_;
  Counter read_bytes_, ssd_read_bytes_, ssd_hits_, stored_bytes_, deduplicated_bytes_,
      puts_held_back_, reads_held_back_, heartbeats_ok_, heartbeats_failed_, given_back_bytes_;
  Gauge taken_over_objects_, taken_over_bytes_, taken_over_dropped_, take_over_seconds_;
  Guarded<std::set<std::string>> namespaces_;  // bounded by those that there have been
};

}  // namespace ems::server
