#include "mp_server/server_metrics.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>

#include "common/metrics_table.h"
#include "common/process_metrics.h"
#include "mp_server/models/model_metrics.h"

namespace ems::server {
namespace {

ForwardMetrics ForwardMetricsOf(MetricsRegistry* registry) {
  const auto keys = [registry](const std::string& result) {
    return registry->AddCounter(
        "ems_server_forwards_total",
        "Keys that missed in slots that came from another server, which was asked for them",
        {{"result", result}});
  };
  return {.hits = keys("hit"),
          .misses = keys("miss"),
          .refused = keys("refused"),
          .failed = keys("failed"),
          .bytes = registry->AddCounter(
              "ems_server_forwarded_bytes_total",
              "Value bytes that came from servers that had their slots before")};
}

MigrateMetrics MigrateMetricsOf(MetricsRegistry* registry) {
  const auto slots = [registry](const std::string& result) {
    return registry->AddCounter("ems_server_migrated_slots_total",
                                "Slots that came here: all that others kept of them was brought, "
                                "or not before their time was over; or what is left is colder than "
                                "what would have to go for it (each time that it was tried)",
                                {{"result", result}});
  };
  return {.keys = registry->AddCounter("ems_server_migrated_keys_total",
                                       "Objects that were brought from servers that had their "
                                       "slots before, without being asked for"),
          .bytes = registry->AddCounter("ems_server_migrated_bytes_total", "Their value bytes"),
          .closed = slots("closed"),
          .given_up = slots("given_up"),
          .no_room = slots("no_room"),
          .seconds = registry->AddGauge("ems_server_migration_seconds",
                                        "How long the last migration from one server took")};
}

kv_events::EventMetrics KvEventMetricsOf(MetricsRegistry* registry) {
  const auto counter = [registry](const std::string& name, const std::string& help) {
    return registry->AddCounter("ems_server_" + name + "_total", help);
  };
  kv_events::EventMetrics metrics;
  metrics.events = counter("kv_events_published", "Events of blocks published");
  metrics.batches = counter("kv_events_batches", "Batches of them published, empty ones included");
  metrics.lost = counter("kv_events_lost", "Events that found kv_events.queue_events waiting");
  metrics.gaps = counter("kv_events_gaps", "Sequence numbers left out because events were lost");
  metrics.replays = counter("kv_events_replays", "Requests for batches that were still there");
  metrics.states = counter("kv_events_states", "Requests answered with the present state");
  metrics.refused = counter("kv_events_refused", "Requests refused: 32 were being answered");
  metrics.foreign =
      counter("kv_events_foreign", "Messages on kv_events.replay_listen that were none");
  metrics.given_up = counter("kv_events_given_up", "Answers that nobody took");
  return metrics;
}

HotMetrics HotMetricsOf(MetricsRegistry* registry) {
  const auto copies = [registry](const std::string& result) {
    return registry->AddCounter("ems_server_hot_copies_sent_total",
                                "Copies of hot objects sent to other servers: kept there, not "
                                "taken, or not answered",
                                {{"result", result}});
  };
  return {.sent = copies("kept"),
          .refused = copies("refused"),
          .failed = copies("failed"),
          .bytes = registry->AddCounter("ems_server_hot_copied_bytes_total",
                                        "Value bytes of hot objects sent to other servers"),
          .keys = registry->AddGauge("ems_server_hot_keys", "Objects of this server that are hot"),
          .copies =
              registry->AddGauge("ems_server_hot_copies", "Copies of them that other servers have"),
          .guests = registry->AddGauge("ems_server_hot_guests",
                                       "Copies of other servers' hot objects that are here")};
}

CopyMetrics CopyMetricsOf(MetricsRegistry* registry) {
  const auto counter = [registry](const std::string& name, const std::string& help,
                                  const Labels& labels = {}) {
    return registry->AddCounter("ems_server_" + name + "_total", help, labels);
  };
  const auto keys = [&](const std::string& result) {
    return counter(
        "copies",
        "Objects of namespaces with replicas that were sent to servers which hold copies: "
        "taken; refused, as there was no room or the slot is not theirs; not answered",
        {{"result", result}});
  };
  return {
      .copies = keys("taken"),
      .bytes = counter("copied_bytes", "Value bytes of copies that others have taken"),
      .repaired = counter("repaired_copies", "Copies that a repair has found missing and made"),
      .removes = counter("removed_copies", "Copies that others have dropped for a Remove here"),
      .refused = keys("refused"),
      .failed = keys("failed"),
      .overflows = counter("copy_overflows",
                           "Keys that the queue of copies had no room for: a repair finds them"),
      .lost_removes = counter("copy_lost_removes",
                              "Removes that did not reach a copy, which stays until it is "
                              "evicted"),
      .repairs = counter("copy_repairs", "Repairs of copies that came to their end"),
      .queued = registry->AddGauge("ems_server_copies_queued",
                                   "Keys that wait to be copied to others, or removed there")};
}

}  // namespace

ServerMetrics::ServerMetrics(MetricsRegistry* registry)
    : registry_(registry),
      lookups_(registry),
      kv_events_(KvEventMetricsOf(registry)),
      forward_(ForwardMetricsOf(registry)),
      migrate_(MigrateMetricsOf(registry)),
      copies_(CopyMetricsOf(registry)),
      hot_(HotMetricsOf(registry)) {
  registry->AddText([latencies = latencies_](std::string* text) { latencies->AppendTo(text); });
  const auto counter = [registry](const std::string& name, const std::string& help,
                                  const Labels& labels = {}) {
    return registry->AddCounter("ems_server_" + name + "_total", help, labels);
  };
  for (size_t op = 1; op <= wire::kOpMax; ++op) {
    for (size_t status = 0; status <= wire::kWireStatusMax; ++status) {
      const Labels labels = {
          {"op", wire::OpName(static_cast<wire::Op>(op))},
          {"status", std::string(wire::StatusName(static_cast<wire::WireStatus>(status)))}};
      const std::string name = "ems_server_answers_total",
                        help = "Requests, or items of Multi requests, answered";
      // An alarm is on this status, and rate() does not see that a series which begins at 1 grew.
      answers_[op][status] =
          static_cast<wire::WireStatus>(status) == wire::WireStatus::kChecksumMismatch
              ? registry->AddCounter(name, help, labels)
              : registry->AddSparseCounter(name, help, labels);
    }
  }
  read_bytes_ = counter("read_bytes", "Value bytes answered from DRAM");
  ssd_read_bytes_ =
      counter("ssd_read_bytes", "Value bytes answered after reading them from the SSD");
  ssd_hits_ = counter("ssd_hits", "Objects answered after reading them from the SSD");
  ShowSsdState(0);
  stored_bytes_ = counter("stored_bytes", "Value bytes stored");
  deduplicated_bytes_ =
      counter("deduplicated_bytes", "Value bytes put again that were stored already");
  puts_held_back_ = counter("puts_held_back",
                            "Puts that found a quarter of their namespace's memory being received");
  reads_held_back_ = counter("reads_held_back",
                             "Reads that found half of their namespace's memory pinned by answers");
  heartbeats_ok_ = counter("heartbeats", "Heartbeats sent", {{"result", "ok"}});
  heartbeats_failed_ = counter("heartbeats", "Heartbeats sent", {{"result", "failed"}});
  given_back_bytes_ = counter("pool_given_back_bytes",
                              "DRAM that the pool has given back because others on this machine "
                              "needed memory");
  AddTakeOver();
  ShowOpenSlots(0);
  rpc_.connections = registry->AddGauge("ems_server_connections", "Data connections open");
  rpc_.accepted = counter("connections_accepted", "Data connections accepted");
  rpc_.refused =
      counter("connections_refused",
              "Data connections refused: connections_max, a peer's part of it, or descriptors");
  rpc_.made_room =
      counter("connections_made_room", "Idle data connections closed near connections_max");
  rpc_.bad_frames = counter("bad_frames", "Frames refused: not EMS, damaged or against the rules");
  rpc_.timeouts =
      counter("connection_timeouts", "Connections closed because the peer was too slow");
  rpc_.slow_puts = counter("slow_puts", "Puts given up because their values came too slowly");
  rpc_.bytes_received = counter("received_bytes", "Body bytes announced by requests");
  rpc_.bytes_sent = counter("sent_bytes", "Body bytes of answers");
  shm_.lookups = &lookups_;
  shm_.sessions = registry->AddGauge("ems_server_shm_sessions", "Clients attached to the memory");
  shm_.attached = counter("shm_attached", "Sessions begun");
  shm_.refused = counter("shm_refused", "Sessions refused: user, sessions_max or no memory");
  shm_.revoked = counter("shm_revoked", "Sessions ended because they pinned more than they may");
  shm_.dismissed = counter(
      "shm_dismissed", "Sessions ended because they broke the protocol or their namespace is gone");
  shm_.registrations_refused =
      counter("shm_registrations_refused",
              "Memory of clients that is not mapped here: their Puts take the socket");
  shm_.registered_bytes = registry->AddGauge("ems_server_shm_registered_bytes",
                                             "Memory of clients mapped here for their Puts");
  shm_.round_seconds = registry->AddGauge("ems_server_shm_round_seconds",
                                          "What the last look at all attached clients took");
}

void ServerMetrics::ShowOpenSlots(uint32_t slots) const {
  Show("open_slots", "Slots that came here and of which other servers may keep what is not here",
       slots);
}

void ServerMetrics::Show(const std::string& name, const std::string& help, uint64_t value,
                         const Labels& labels) const {
  registry_->AddGauge("ems_server_" + name, help, labels).Set(static_cast<double>(value));
}

void ServerMetrics::Count(const std::string& name, const std::string& help, uint64_t value,
                          const Labels& labels) const {
  registry_->AddShownCounter("ems_server_" + name + "_total", help, labels)
      .Set(static_cast<double>(value));
}

void ServerMetrics::AddTakeOver() {
  taken_over_objects_ = registry_->AddGauge("ems_server_taken_over_objects",
                                            "Objects that this process was handed at its start");
  taken_over_bytes_ = registry_->AddGauge("ems_server_taken_over_bytes", "Their value bytes");
  taken_over_dropped_ = registry_->AddGauge(
      "ems_server_taken_over_dropped_objects",
      "Objects handed to it that others may have changed, or whose namespace is gone");
  take_over_seconds_ =
      registry_->AddGauge("ems_server_take_over_seconds", "What taking them over took");
}

void ServerMetrics::OnTakenOver(const TakeOver::Taken& taken, double seconds) const {
  taken_over_objects_.Set(static_cast<double>(taken.objects));
  taken_over_bytes_.Set(static_cast<double>(taken.value_bytes));
  taken_over_dropped_.Set(static_cast<double>(taken.dropped));
  take_over_seconds_.Set(seconds);
}

void ServerMetrics::ShowSsdState(uint64_t state) const {
  Show("ssd_state", "0: no SSD tier, 1: ok, 2: degraded (nothing is written), 3: offline", state);
}

void ServerMetrics::ShowSsd(const ssd::TierStats& tier) const {
  const auto show = [this](const std::string& name, uint64_t value, const std::string& help) {
    Show("ssd_" + name, help, value);
  };
  const auto count = [this](const std::string& name, uint64_t value, const std::string& help) {
    Count("ssd_" + name, help, value);
  };
  show("capacity_bytes", tier.capacity_bytes, "What the SSD tier may take of the disk");
  show("disk_bytes", tier.disk_bytes, "What it takes: regions, as allocated, and its index");
  show("free_bytes", tier.free_bytes, "What is free of the file system of the SSD tier");
  show("objects", tier.objects, "Objects on the SSD");
  show("value_bytes", tier.value_bytes, "Value bytes of objects on the SSD");
  show("index_memory_bytes", tier.index_memory_bytes,
       "Memory that the index of the SSD takes, about");
  show("index_memory_bytes_max", tier.index_memory_bytes_max, "What it may take");
  const auto& writer = tier.writer;
  show("dirty_bytes", writer.dirty_bytes,
       "Value bytes that wait to be written or are being written");
  show("held_back_bytes", writer.held_back_bytes,
       "Those of them that were overwritten, until their keys are quiet");
  count("spared_objects", writer.spared_objects,
        "Objects that were overwritten or removed while they were held back: never written");
  count("quiet_objects", writer.quiet_objects,
        "Objects that were held back and written when their keys were quiet");
  count("written_objects", writer.written_objects, "Objects written since the start");
  count("written_bytes", writer.written_bytes, "Value bytes written since the start");
  count("log_bytes", writer.disk_bytes,
        "Bytes written to regions since the start, padding included");
  count("shed_objects", writer.shed_objects,
        "Objects that stayed in DRAM alone: the SSD was not ready for them");
  count("refused_small_objects", writer.refused_small_objects,
        "Objects that stayed in DRAM alone: too small while its index has little room left");
  count("failed_objects", writer.failed_objects, "Objects whose write failed");
  count("reclaimed_regions", writer.reclaimed_regions, "Regions reclaimed for new objects");
  count("reclaimed_objects", writer.reclaimed_objects, "Objects that were lost with them");
  count("moved_objects", writer.moved_objects,
        "Objects that were kept when their region was reclaimed");
  count("degraded", writer.degraded_times, "How often the disk has refused writes");
  count("dropped_damaged", tier.dropped_damaged,
        "Objects dropped because they did not match their checksums or could not be read");
  count("dropped_to_fit", tier.dropped_to_fit,
        "Objects dropped at the start: the index has no room for so many any more");
  show("index_set_aside", tier.index_set_aside.empty() ? 0 : 1,
       "1: its index was damaged at the start and is set aside; the SSD tier started empty");
  count("reads", tier.reader.reads, "Records read since the start");
  count("reads_refused", tier.reader.refused,
        "Reads not begun: too many, or a disk that is too slow");
  count("reads_failed", tier.reader.failed, "Reads that the disk failed");
  count("scrub_passes", tier.scrubber.passes, "How often all that is stored has been checked");
  count("scrubbed_bytes", tier.scrubber.bytes, "Value bytes checked so since the start");
}

void ServerMetrics::Refresh(const ssd::TierStats& tier) const {
  ShowSsdState(1 + static_cast<uint64_t>(tier.state));
  ShowSsd(tier);
}

void ServerMetrics::OnAnswers(wire::Op op, std::span<const wire::ItemResult> results) const {
  std::array<uint32_t, wire::kWireStatusMax + 1> counts{};
  for (const wire::ItemResult& result : results) ++counts[static_cast<size_t>(result.status)];
  for (size_t status = 0; status < counts.size(); ++status) {
    if (counts[status] > 0) OnAnswer(op, static_cast<wire::WireStatus>(status), counts[status]);
  }
}

uint64_t ServerMetrics::puts() const {
  double puts = 0;
  for (const wire::Op op :
       {wire::Op::kPut, wire::Op::kMultiPut, wire::Op::kPutStaged, wire::Op::kMultiPutStaged})
    puts += answers_[static_cast<size_t>(op)][static_cast<size_t>(wire::WireStatus::kOk)].value();
  return static_cast<uint64_t>(puts);
}

void ServerMetrics::ShowCurve(const NamespaceUsage& one) const {
  constexpr std::array<const char*, kCurveMemories.size()> kNames = {"0.25x", "0.5x", "1x",
                                                                     "2x",    "4x",   "8x"};
  for (size_t i = 0; i < kNames.size(); ++i) {
    registry_
        ->AddGauge("ems_server_hit_ratio_estimate",
                   "Share of look-ups that would find their value in DRAM, with so many times the "
                   "memory of the namespace; NaN: not enough samples",
                   {{"namespace", one.name}, {"memory", kNames[i]}})
        .Set(one.curve.enough ? one.curve.estimates[i] : std::nan(""));
  }
  Show("hit_ratio_samples", "Look-ups, lately, that these estimates are made of", one.curve.samples,
       {{"namespace", one.name}});
  Count("hit_ratio_samples_lost", "Sampled look-ups that rings of attached clients had no room for",
        one.samples_lost, {{"namespace", one.name}});
}

void ServerMetrics::ShowNamespace(const NamespaceUsage& one) const {
  const auto show = [&](const std::string& name, uint64_t value, const std::string& help) {
    Show(name, help, value, {{"namespace", one.name}});
  };
  const auto count = [&](const std::string& name, uint64_t value, const std::string& help) {
    Count(name, help, value, {{"namespace", one.name}});
  };
  show("objects", one.objects, "Objects in DRAM");
  show("objects_max", one.objects_max,
       "Most objects in DRAM: one for each 512 bytes of quota or pool");
  count("count_evictions", one.count_evictions,
        "Objects evicted since the start because of objects_max");
  show("value_bytes", one.value_bytes, "Value bytes in DRAM, as charged to the quota");
  show("quota_bytes", one.quota_bytes, "This server's share of the DRAM quota; 0: none");
  show("segment_bytes", one.segment_bytes, "DRAM in segments of the namespace");
  count("evicted_objects", one.evicted_objects, "Objects evicted since the start");
  count("evicted_bytes", one.evicted_bytes, "Value bytes evicted since the start");
  registry_
      ->AddGauge("ems_server_eviction_age_seconds",
                 "How long the object that was evicted last had not been used",
                 {{"namespace", one.name}})
      .Set(std::chrono::duration<double>(one.eviction_age).count());
  show("kept_objects", one.kept_objects,
       "Objects of slots that are another server's now, kept for it");
  show("kept_bytes", one.kept_bytes, "Value bytes of these objects");
  count("damaged_objects", one.damaged_objects,
        "Objects dropped since the start because their bytes had changed in DRAM");
  count("shm_touches", one.touches,
        "Uses of objects that attached clients have reported since the start");
  show("retired_bytes", one.retired_bytes,
       "Bytes evicted or removed that attached clients still look at");
  show("shared_index_bytes", one.shared_index_bytes, "Memory of the index clients read");
  count("shared_index_left_out", one.shared_index_left_out,
        "Objects without a place in that index since the start");
  ShowCurve(one);
}

void ServerMetrics::Refresh(const ObjectStore& store, SegmentPool* pool,
                            const Ownership& ownership) {
  ShowPool(pool->stats());
  ShowView(ownership.version(), ownership.owned_slots(), ownership.LeaseValid());
  const std::vector<NamespaceUsage> usage = store.Usage();
  std::set<std::string> names;
  {
    auto known = namespaces_.Lock();
    for (const NamespaceUsage& one : usage) known->insert(one.name);
    names = *known;
  }
  // Those that were deleted have nothing.
  for (const std::string& name : names) {
    const auto one = std::ranges::find(usage, name, &NamespaceUsage::name);
    ShowNamespace(one == usage.end() ? NamespaceUsage{.ref = {}, .name = name} : *one);
  }
}

void ServerMetrics::ShowView(ViewVersion version, uint64_t owned_slots, bool lease_valid) const {
  Show("view_term", "Term of the installed view", version.term());
  Show("view_epoch", "Epoch of the installed view", version.epoch());
  Show("owned_slots", "Slots owned, of 16384", owned_slots);
  Show("lease_valid", "1 while Put and Remove are allowed", lease_valid ? 1 : 0);
}

void ServerMetrics::ShowPool(const SegmentPool::Stats& stats) const {
  Show("pool_bytes", "DRAM that the pool may have, now", stats.bytes_max);
  Show("pool_used_bytes", "DRAM in segments held by namespaces", stats.bytes_in_use);
  Show("pool_ready_bytes", "DRAM in segments touched and free", stats.bytes_ready);
  Show("pool_kept_bytes", "DRAM that was called back and clients still map", stats.bytes_kept);
  Show("huge_page_fallback", "1 when huge pages were asked for and smaller ones are used",
       stats.fell_back ? 1 : 0);
  Count("pool_refused", "Times the machine did not give memory", stats.refused);
}

std::string ServerMetrics::Table() {
  MetricsRegistry registry;
  const ServerMetrics metrics(&registry);
  const ModelMetrics models(&registry);
  metrics.OnAnswer(wire::Op::kGet, wire::WireStatus::kOk);
  metrics.OnServed(wire::Op::kGet, wire::ItemTier::kDram, true, Duration(1));
  metrics.lookups().For("default").Add(LookupPath::kSocket, {.hits = 1, .bytes = 1});
  metrics.ShowSsd(ssd::TierStats());
  metrics.ShowPool(SegmentPool::Stats());
  metrics.ShowView(ViewVersion(), 0, false);
  metrics.ShowNamespace(NamespaceUsage{.ref = {}, .name = "default"});
  std::string text = registry.Render();
  AppendProcessMetrics(&text);
  return MetricsTable(text);
}

}  // namespace ems::server
