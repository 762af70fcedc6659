#include "mp_server/server_metrics.h"

namespace ems::server {

ServerMetrics::ServerMetrics(MetricsRegistry* registry) : registry_(registry) {
  for (size_t op = 1; op <= wire::kOpMax; ++op) {
    for (size_t status = 0; status <= wire::kWireStatusMax; ++status) {
      answers_[op][status] = registry->AddCounter(
          "ems_server_answers_total", "Requests, or items of Multi requests, answered",
          {{"op", wire::OpName(static_cast<wire::Op>(op))},
           {"status", std::string(wire::StatusName(static_cast<wire::WireStatus>(status)))}});
    }
  }
  read_bytes_ =
      registry->AddCounter("ems_server_read_bytes_total", "Value bytes answered from DRAM");
  ssd_read_bytes_ = registry->AddCounter("ems_server_ssd_read_bytes_total",
                                         "Value bytes answered after reading them from the SSD");
  ssd_hits_ = registry->AddCounter("ems_server_ssd_hits_total",
                                   "Objects answered after reading them from the SSD");
  MakeSsdGauges();
  MakeEventCounters();
  stored_bytes_ = registry->AddCounter("ems_server_stored_bytes_total", "Value bytes stored");
  deduplicated_bytes_ = registry->AddCounter("ems_server_deduplicated_bytes_total",
                                             "Value bytes put again that were there already");
  const std::string beats = "ems_server_heartbeats_total";
  heartbeats_ok_ = registry->AddCounter(beats, "Heartbeats sent", {{"result", "ok"}});
  heartbeats_failed_ = registry->AddCounter(beats, "Heartbeats sent", {{"result", "failed"}});
  pool_bytes_ = registry->AddGauge("ems_server_pool_bytes", "DRAM given to the pool");
  pool_used_bytes_ =
      registry->AddGauge("ems_server_pool_used_bytes", "DRAM in segments held by namespaces");
  pool_ready_bytes_ =
      registry->AddGauge("ems_server_pool_ready_bytes", "DRAM in segments touched and free");
  pool_kept_bytes_ = registry->AddGauge("ems_server_pool_kept_bytes",
                                        "DRAM that was called back and clients still map");
  huge_page_fallback_ =
      registry->AddGauge("ems_server_huge_page_fallback",
                         "1 when huge pages were asked for and smaller ones are used");
  pool_refused_ =
      registry->AddGauge("ems_server_pool_refused", "Times the machine did not give memory");
  view_term_ = registry->AddGauge("ems_server_view_term", "Term of the installed view");
  view_epoch_ = registry->AddGauge("ems_server_view_epoch", "Epoch of the installed view");
  owned_slots_ = registry->AddGauge("ems_server_owned_slots", "Slots owned, of 4096");
  lease_valid_ = registry->AddGauge("ems_server_lease_valid", "1 while Put and Remove are allowed");
  rpc_.connections = registry->AddGauge("ems_server_connections", "Data connections open");
  rpc_.accepted =
      registry->AddCounter("ems_server_connections_accepted_total", "Data connections accepted");
  rpc_.refused = registry->AddCounter("ems_server_connections_refused_total",
                                      "Data connections refused: connections_max or descriptors");
  rpc_.bad_frames = registry->AddCounter("ems_server_bad_frames_total",
                                         "Frames refused: not EMS, damaged or against the rules");
  rpc_.timeouts = registry->AddCounter("ems_server_connection_timeouts_total",
                                       "Connections closed because the peer was too slow");
  rpc_.bytes_received =
      registry->AddCounter("ems_server_received_bytes_total", "Body bytes announced by requests");
  rpc_.bytes_sent = registry->AddCounter("ems_server_sent_bytes_total", "Body bytes of answers");
  shm_.sessions = registry->AddGauge("ems_server_shm_sessions", "Clients attached to the memory");
  shm_.attached = registry->AddCounter("ems_server_shm_attached_total", "Sessions begun");
  shm_.refused = registry->AddCounter("ems_server_shm_refused_total",
                                      "Sessions refused: user, sessions_max or no memory");
  shm_.revoked = registry->AddCounter("ems_server_shm_revoked_total",
                                      "Sessions ended because they pinned more than they may");
  shm_.dismissed = registry->AddCounter(
      "ems_server_shm_dismissed_total",
      "Sessions ended because they broke the protocol or their namespace is gone");
  shm_.registrations_refused =
      registry->AddCounter("ems_server_shm_registrations_refused_total",
                           "Memory of clients that is not mapped here: their Puts take the socket");
  shm_.registered_bytes = registry->AddGauge("ems_server_shm_registered_bytes",
                                             "Memory of clients mapped here for their Puts");
}

ServerMetrics::NamespaceGauges ServerMetrics::MakeGauges(const std::string& name) {
  const Labels labels = {{"namespace", name}};
  return {
      registry_->AddGauge("ems_server_objects", "Objects in DRAM", labels),
      registry_->AddGauge("ems_server_objects_max",
                          "Most objects in DRAM: one for each 512 bytes of quota or pool", labels),
      registry_->AddGauge("ems_server_count_evictions",
                          "Objects evicted since the start because of ems_server_objects_max",
                          labels),
      registry_->AddGauge("ems_server_value_bytes", "Value bytes in DRAM, as charged to the quota",
                          labels),
      registry_->AddGauge("ems_server_quota_bytes",
                          "This server's share of the DRAM quota; 0: none", labels),
      registry_->AddGauge("ems_server_segment_bytes", "DRAM in segments of the namespace", labels),
      registry_->AddGauge("ems_server_evicted_objects", "Objects evicted since the start", labels),
      registry_->AddGauge("ems_server_evicted_bytes", "Value bytes evicted since the start",
                          labels),
      registry_->AddGauge("ems_server_damaged_objects",
                          "Objects dropped since the start because their bytes had changed in DRAM",
                          labels),
      registry_->AddGauge("ems_server_shm_touches",
                          "Uses of objects that attached clients have reported since the start",
                          labels),
      registry_->AddGauge("ems_server_parked_bytes",
                          "Bytes evicted or removed that attached clients still look at", labels),
      registry_->AddGauge("ems_server_shared_index_bytes", "Memory of the index clients read",
                          labels),
      registry_->AddGauge("ems_server_shared_index_left_out",
                          "Objects without a place in that index since the start", labels)};
}

void ServerMetrics::MakeEventCounters() {
  const auto counter = [this](const std::string& name, const std::string& help) {
    return registry_->AddCounter("ems_server_kv_events_" + name + "_total", help);
  };
  kv_events_.events = counter("published", "Events of blocks published");
  kv_events_.batches = counter("batches", "Batches of them published, empty ones included");
  kv_events_.lost = counter("lost", "Events that found kv_events.queue_events waiting");
  kv_events_.gaps = counter("gaps", "Sequence numbers left out because events were lost");
  kv_events_.replays = counter("replays", "Requests for batches that were still there");
  kv_events_.states = counter("states", "Requests answered with the present state");
  kv_events_.refused = counter("refused", "Requests refused: 32 were being answered");
  kv_events_.foreign = counter("foreign", "Messages on kv_events.replay_listen that were none");
  kv_events_.given_up = counter("given_up", "Answers that nobody took");
}

void ServerMetrics::MakeSsdGauges() {
  const auto gauge = [this](const std::string& name, const std::string& help) {
    return registry_->AddGauge("ems_server_ssd_" + name, help);
  };
  ssd_.state =
      gauge("state", "0: no SSD tier, 1: ok, 2: degraded (nothing is written), 3: offline");
  ssd_.capacity_bytes = gauge("capacity_bytes", "What the SSD tier may take of the disk");
  ssd_.disk_bytes = gauge("disk_bytes", "What it takes: regions, as allocated, and its index");
  ssd_.objects = gauge("objects", "Objects on the SSD");
  ssd_.value_bytes = gauge("value_bytes", "Value bytes of objects on the SSD");
  ssd_.dirty_bytes =
      gauge("dirty_bytes", "Value bytes that wait to be written or are being written");
  ssd_.written_objects = gauge("written_objects", "Objects written since the start");
  ssd_.written_bytes = gauge("written_bytes", "Value bytes written since the start");
  ssd_.log_bytes = gauge("log_bytes", "Bytes written to regions since the start, padding included");
  ssd_.shed_objects =
      gauge("shed_objects", "Objects that stayed in DRAM alone: the SSD was not ready for them");
  ssd_.failed_objects = gauge("failed_objects", "Objects whose write failed");
  ssd_.reclaimed_regions = gauge("reclaimed_regions", "Regions given up for new objects");
  ssd_.reclaimed_objects = gauge("reclaimed_objects", "Objects that were lost with them");
  ssd_.moved_objects =
      gauge("moved_objects", "Objects that were kept when their region was given up");
  ssd_.dropped_damaged =
      gauge("dropped_damaged",
            "Objects dropped because they did not match their checksums or could "
            "not be read");
  ssd_.reads = gauge("reads", "Records read since the start");
  ssd_.reads_refused =
      gauge("reads_refused", "Reads not begun: too many, or a disk that is too slow");
  ssd_.reads_failed = gauge("reads_failed", "Reads that the disk failed");
  ssd_.scrub_passes = gauge("scrub_passes", "How often all that is stored has been checked");
  ssd_.scrubbed_bytes = gauge("scrubbed_bytes", "Value bytes checked so since the start");
  ssd_.degraded_times = gauge("degraded_times", "How often the disk has refused writes");
}

void ServerMetrics::Refresh(const ssd::TierStats& tier) {
  const auto set = [](const Gauge& gauge, uint64_t value) {
    gauge.Set(static_cast<double>(value));
  };
  ssd_.state.Set(1 + static_cast<double>(tier.state));
  set(ssd_.capacity_bytes, tier.capacity_bytes);
  set(ssd_.disk_bytes, tier.disk_bytes);
  set(ssd_.objects, tier.objects);
  set(ssd_.value_bytes, tier.value_bytes);
  set(ssd_.dirty_bytes, tier.writer.dirty_bytes);
  set(ssd_.written_objects, tier.writer.written_objects);
  set(ssd_.written_bytes, tier.writer.written_bytes);
  set(ssd_.log_bytes, tier.writer.disk_bytes);
  set(ssd_.shed_objects, tier.writer.shed_objects);
  set(ssd_.failed_objects, tier.writer.failed_objects);
  set(ssd_.reclaimed_regions, tier.writer.reclaimed_regions);
  set(ssd_.reclaimed_objects, tier.writer.reclaimed_objects);
  set(ssd_.moved_objects, tier.writer.moved_objects);
  set(ssd_.dropped_damaged, tier.dropped_damaged);
  set(ssd_.reads, tier.reader.reads);
  set(ssd_.reads_refused, tier.reader.refused);
  set(ssd_.reads_failed, tier.reader.failed);
  set(ssd_.scrub_passes, tier.scrubber.passes);
  set(ssd_.scrubbed_bytes, tier.scrubber.bytes);
  set(ssd_.degraded_times, tier.writer.degraded_times);
}

ServerMetrics::HitCounts ServerMetrics::hit_counts() const {
  HitCounts counts;
  counts.ssd_hits = static_cast<uint64_t>(ssd_hits_.value());
  for (const wire::Op op : {wire::Op::kGet, wire::Op::kMultiGet}) {
    const auto& of_op = answers_[static_cast<size_t>(op)];
    const auto count = [&](wire::WireStatus status) {
      return static_cast<uint64_t>(of_op[static_cast<size_t>(status)].value());
    };
    counts.hits += count(wire::WireStatus::kOk);
    counts.gets += count(wire::WireStatus::kOk) + count(wire::WireStatus::kMiss);
  }
  return counts;
}

void ServerMetrics::Refresh(ObjectStore* store, SegmentPool* pool, const Ownership& ownership) {
  const SegmentPool::Stats stats = pool->stats();
  pool_bytes_.Set(static_cast<double>(stats.bytes_max));
  pool_used_bytes_.Set(static_cast<double>(stats.bytes_in_use));
  pool_ready_bytes_.Set(static_cast<double>(stats.bytes_ready));
  pool_kept_bytes_.Set(static_cast<double>(stats.bytes_kept));
  huge_page_fallback_.Set(stats.fell_back ? 1 : 0);
  pool_refused_.Set(static_cast<double>(stats.refused));
  view_term_.Set(static_cast<double>(ownership.version().term()));
  view_epoch_.Set(static_cast<double>(ownership.version().epoch()));
  owned_slots_.Set(ownership.owned_slots());
  lease_valid_.Set(ownership.LeaseValid() ? 1 : 0);
  const std::vector<NamespaceUsage> usage = store->Usage();
  auto gauges = namespaces_.Lock();
  for (auto& [name, gauge] :
       *gauges) {  // of a deleted namespace: zero, unless it is set again below
    gauge.objects.Set(0);
    gauge.value_bytes.Set(0);
    gauge.segment_bytes.Set(0);
  }
  for (const NamespaceUsage& one : usage) {
    auto at = gauges->find(one.name);
    if (at == gauges->end()) at = gauges->emplace(one.name, MakeGauges(one.name)).first;
    at->second.objects.Set(static_cast<double>(one.objects));
    at->second.objects_max.Set(static_cast<double>(one.objects_max));
    at->second.count_evictions.Set(static_cast<double>(one.count_evictions));
    at->second.value_bytes.Set(static_cast<double>(one.value_bytes));
    at->second.quota_bytes.Set(static_cast<double>(one.quota_bytes));
    at->second.segment_bytes.Set(static_cast<double>(one.segment_bytes));
    at->second.evicted_objects.Set(static_cast<double>(one.evicted_objects));
    at->second.evicted_bytes.Set(static_cast<double>(one.evicted_bytes));
    at->second.damaged_objects.Set(static_cast<double>(one.damaged_objects));
    at->second.touches.Set(static_cast<double>(one.touches));
    at->second.parked_bytes.Set(static_cast<double>(one.parked_bytes));
    at->second.shared_index_bytes.Set(static_cast<double>(one.shared_index_bytes));
    at->second.shared_index_left_out.Set(static_cast<double>(one.shared_index_left_out));
  }
}

}  // namespace ems::server
