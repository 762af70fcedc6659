#include "mp_server/stats_page.h"

#include <fmt/format.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "common/version.h"

namespace ems::server {
namespace {

using std::chrono::duration_cast;
using std::chrono::milliseconds;
using std::chrono::system_clock;

nlohmann::json SsdJson(const ssd::TierStats& stats) {
  return {{"state", ssd::TierStateName(stats.state)},
          {"reason", stats.reason},
          {"io", stats.io_engine},
          {"capacity_bytes", stats.capacity_bytes},
          {"disk_bytes", stats.disk_bytes},
          {"region_bytes", stats.region_bytes},
          {"objects", stats.objects},
          {"value_bytes", stats.value_bytes},
          {"index_memory_bytes", stats.index_memory_bytes},
          {"index_memory_bytes_max", stats.index_memory_bytes_max},
          {"dirty_bytes", stats.writer.dirty_bytes},
          {"held_back_bytes", stats.writer.held_back_bytes},
          {"spared_objects", stats.writer.spared_objects},
          {"quiet_objects", stats.writer.quiet_objects},
          {"written_objects", stats.writer.written_objects},
          {"written_bytes", stats.writer.written_bytes},
          {"log_bytes", stats.writer.disk_bytes},
          {"shed_objects", stats.writer.shed_objects},
          {"refused_small_objects", stats.writer.refused_small_objects},
          {"failed_objects", stats.writer.failed_objects},
          {"reclaimed_objects", stats.writer.reclaimed_objects},
          {"moved_objects", stats.writer.moved_objects},
          {"reads", stats.reader.reads},
          {"reads_refused", stats.reader.refused},
          {"dropped_damaged", stats.dropped_damaged},
          {"scrub_passes", stats.scrubber.passes},
          {"scrubbed_objects", stats.scrubber.objects},
          {"scrubbed_bytes", stats.scrubber.bytes},
          {"index_set_aside", stats.index_set_aside},
          {"recovered_objects", stats.recovered_objects},
          {"dropped_to_fit", stats.dropped_to_fit},
          {"recovery_seconds", stats.recovery_seconds}};
}

// Of values that were asked for.
struct GetCounts {
  GetCounts(const LookupCounts& by_socket, const LookupCounts& by_clients)
      : one_sided_gets(by_clients.hits + by_clients.misses),
        one_sided_hits(by_clients.hits),
        gets(by_socket.hits + by_socket.misses + one_sided_gets),
        hits(by_socket.hits + one_sided_hits) {}
  uint64_t one_sided_gets, one_sided_hits, gets, hits;
};

nlohmann::json CurveJson(const HitCurve& curve) {
  nlohmann::json json{
      {"memory_bytes", curve.memory_bytes}, {"lookups", curve.lookups}, {"hits", curve.hits},
      {"samples", curve.samples},           {"age_s", curve.age_s},     {"estimates", nullptr}};
  if (curve.enough) json["estimates"] = curve.estimates;
  return json;
}

nlohmann::json NamespaceJson(const NamespaceUsage& one, const NamespaceLookups& lookups) {
  const GetCounts counts(lookups.Of(LookupPath::kSocket), lookups.Of(LookupPath::kOneSided));
  return {{"name", one.name},
          {"gets", counts.gets},
          {"hits", counts.hits},
          {"id", one.ref.id.value()},
          {"generation", one.ref.generation},
          {"objects", one.objects},
          {"value_bytes", one.value_bytes},
          {"quota_bytes", one.quota_bytes},
          {"reserved_bytes", one.reserved_bytes},
          {"segment_bytes", one.segment_bytes},
          {"chunk_bytes", one.chunk_bytes},
          {"evicted_objects", one.evicted_objects},
          {"evicted_bytes", one.evicted_bytes},
          {"touches", one.touches},
          {"damaged_objects", one.damaged_objects},
          {"pinned_objects", one.pinned_objects},
          {"retired_bytes", one.retired_bytes},
          {"linked_bytes", one.linked_bytes},
          {"curve", CurveJson(one.curve)},
          {"samples_lost", one.samples_lost},
          {"shared_index_bytes", one.shared_index_bytes}};
}

}  // namespace

std::string StatsPage::Json() const {
  const SegmentPool::Stats memory = pool_.stats();
  nlohmann::json json;
  json["name"] = name_;
  json["boot_id"] = fmt::format("{:016x}", boot_id_);
  json["version"] = Version();
  // Only to be compared with other machines' clocks.
  json["unix_ms"] = duration_cast<milliseconds>(system_clock::now().time_since_epoch()).count();
  json["view"] = {{"term", ownership_.version().term()}, {"epoch", ownership_.version().epoch()}};
  json["owned_slots"] = ownership_.owned_slots();
  json["lease_valid"] = ownership_.LeaseValid();
  const LookupCounters& lookups = metrics_.lookups();
  const GetCounts counts(lookups.Total(LookupPath::kSocket), lookups.Total(LookupPath::kOneSided));
  json["gets"] = counts.gets;
  json["hits"] = counts.hits;
  json["one_sided_gets"] = counts.one_sided_gets;
  json["one_sided_hits"] = counts.one_sided_hits;
  json["puts"] = metrics_.puts();
  json["read_bytes"] =
      lookups.Total(LookupPath::kSocket).bytes + lookups.Total(LookupPath::kOneSided).bytes;
  json["stored_bytes"] = metrics_.stored_bytes();
  json["shm_sessions"] = static_cast<uint64_t>(metrics_.shm().sessions.value());
  json["shm_registered_bytes"] = static_cast<uint64_t>(metrics_.shm().registered_bytes.value());
  json["pool"] = {
      {"bytes_max", memory.bytes_max},     {"bytes_created", memory.bytes_created},
      {"bytes_ready", memory.bytes_ready}, {"bytes_in_use", memory.bytes_in_use},
      {"bytes_kept", memory.bytes_kept},   {"page_kind", fabric::PageKindName(memory.page_kind)}};
  json["ssd_hits"] = metrics_.ssd_hits();
  if (ssd_ != nullptr) json["ssd"] = SsdJson(ssd_->stats());
  json["namespaces"] = nlohmann::json::array();
  for (const NamespaceUsage& one : store_.Usage())
    json["namespaces"].push_back(NamespaceJson(one, lookups.For(one.name)));
  return json.dump();
}

NodeUsage StatsPage::Usage() const {
  NodeUsage usage;
  usage.dram_total_bytes = pool_.bytes_max();
  const LookupCounters& lookups = metrics_.lookups();
  const GetCounts counts(lookups.Total(LookupPath::kSocket), lookups.Total(LookupPath::kOneSided));
  usage.gets = counts.gets;
  usage.hits = counts.hits;
  for (const NamespaceUsage& one : store_.Usage()) {
    usage.dram_used_bytes += one.value_bytes;
    usage.objects += one.objects;
    if (one.curve.lookups > 0) usage.curves.push_back(one.curve);
    usage.damaged_objects += one.damaged_objects;
    if (one.quota_bytes > 0 && usage.quota_parts.size() < kQuotaPartsMax)
      usage.quota_parts.push_back(
          {one.ref, one.quota_total_bytes, one.quota_bytes, one.value_bytes, one.coldest_age});
  }
  KeepBusiest(&usage.curves);
  if (ssd_ == nullptr) return usage;
  const ssd::TierStats ssd = ssd_->stats();
  usage.ssd_used_bytes = ssd.value_bytes;
  usage.ssd_total_bytes = ssd.capacity_bytes;
  usage.damaged_objects += ssd.dropped_damaged;
  usage.ssd_state = ssd.state == ssd::TierState::kOk         ? SsdState::kOk
                    : ssd.state == ssd::TierState::kDegraded ? SsdState::kDegraded
                                                             : SsdState::kOffline;
  return usage;
}

}  // namespace ems::server
