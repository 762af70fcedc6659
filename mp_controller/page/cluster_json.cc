#include "mp_controller/page/cluster_json.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "cluster/cluster_health.h"
#include "cluster/dht_view.h"
#include "cluster/hit_curve.h"
#include "common/cluster_id.h"
#include "common/wall_time.h"
#include "proto/controller.pb.h"
#include "proto/model.pb.h"

namespace ems::controller {
namespace {

using Json = nlohmann::ordered_json;

std::string_view StateWord(v1::NodeState state) {
  switch (state) {
    case v1::NODE_LIVE:
      return "up";
    case v1::NODE_DOWN:
      return "DOWN";
    case v1::NODE_LEFT:
      return "left";
    default:
      return "unknown";
  }
}

std::string_view SsdWord(v1::SsdState state) {
  switch (state) {
    case v1::SSD_OK:
      return "ok";
    case v1::SSD_DEGRADED:
      return "degraded";
    case v1::SSD_OFFLINE:
      return "offline";
    default:
      return "none";
  }
}

std::string_view DurabilityWord(const v1::NamespacePolicy& policy) {
  if (policy.durability() != v1::DURABILITY_SSD) return "dram";
  return policy.ssd_sync_relaxed() ? "ssd-relaxed" : "ssd";
}

std::string_view ChecksumWord(v1::ChecksumPolicy checksum) {
  switch (checksum) {
    case v1::CHECKSUM_ALWAYS:
      return "always";
    case v1::CHECKSUM_SAMPLED:
      return "sampled";
    case v1::CHECKSUM_NEVER:
      return "never";
    default:
      return "unknown";
  }
}

std::string_view JobWord(v1::PullState state) {
  switch (state) {
    case v1::PULL_RUNNING:
      return "running";
    case v1::PULL_DONE:
      return "done";
    case v1::PULL_FAILED:
      return "failed";
    case v1::PULL_CANCELLED:
      return "cancelled";
    default:
      return "none";
  }
}

// What needs a look comes first, so that it is there where not all fit.
int RankOf(const v1::NodeStatus& node, const ClusterFacts& facts) {
  if (node.node().state() == v1::NODE_DOWN) return 0;
  if (IsSick(node, *facts.nodes, facts.view)) return 1;
  return node.node().state() == v1::NODE_LEFT ? 3 : 2;
}

Json NodeJson(const v1::NodeStatus& n) {
  const v1::NodeUsage& usage = n.usage();
  Json json{{"name", n.node().name()},
            {"id", n.node().id()},
            {"state", StateWord(n.node().state())},
            {"data_address", n.node().data_address()},
            {"http_address", n.node().http_address()},
            {"capacity_bytes", n.node().capacity_bytes()},
            {"slots", n.slots()},
            {"dram_used_bytes", usage.dram_used_bytes()},
            {"dram_total_bytes", usage.dram_total_bytes()},
            {"objects", usage.objects()},
            {"ssd_used_bytes", usage.ssd_used_bytes()},
            {"ssd_total_bytes", usage.ssd_total_bytes()},
            {"ssd_state", SsdWord(usage.ssd_state())},
            {"gets", usage.gets()},
            {"hits", usage.hits()},
            {"heartbeat_age_ms", nullptr},
            {"joined_unix_ms", n.node().joined_unix_ms()},
            {"left_unix_ms", n.node().left_unix_ms()},
            {"behind_ms", n.behind_ms()},
            {"ahead", n.ahead()},
            {"waited_for", n.waited_for()},
            {"waiting_ms", n.waiting_ms()},
            {"drain", DrainWord(n)},
            {"pulled_by", n.pulled_by()},
            {"stopping", n.stopping()},
            {"pulls_from", n.pulls_from()},
            {"term", n.term()},
            {"epoch", n.epoch()},
            // A process that begins again counts from 0: who compares counts has to know.
            {"boot_id", fmt::format("{:016x}", n.node().boot_id())}};
  if (!n.never_heard()) json["heartbeat_age_ms"] = n.heartbeat_age_ms();
  return json;
}

// What servers estimate of one of the namespaces; null: nothing yet.
Json CurveJson(const v1::Namespace& one, const v1::ListNamespacesReply& namespaces) {
  for (const v1::HitCurve& proto : namespaces.curves()) {
    if (proto.namespace_id() != one.id() || proto.generation() != one.generation()) continue;
    const HitCurve curve = FromProto(proto);
    Json json{{"memory_bytes", curve.memory_bytes},
              {"lookups", curve.lookups},
              {"hits", curve.hits},
              {"age_s", curve.age_s},
              {"memories", kCurveMemories},
              {"estimates", nullptr}};
    if (curve.enough) json["estimates"] = curve.estimates;
    return json;
  }
  return nullptr;
}

Json NamespaceJson(const v1::Namespace& one, const v1::ListNamespacesReply& namespaces) {
  const v1::NamespacePolicy& policy = one.policy();
  return {{"name", one.name()},
          {"id", one.id()},
          {"generation", one.generation()},
          {"dram_quota_bytes", policy.dram_quota_bytes()},
          {"dram_reserved_bytes", policy.dram_reserved_bytes()},
          {"ssd_quota_bytes", policy.ssd_quota_bytes()},
          {"ssd_reserved_bytes", policy.ssd_reserved_bytes()},
          {"durability", DurabilityWord(policy)},
          {"checksum", ChecksumWord(policy.checksum())},
          {"immutable", policy.immutable()},
          {"replicas", std::max<uint32_t>(policy.replicas(), 1)},
          {"curve", CurveJson(one, namespaces)}};
}

Json ModelJson(const v1::ModelStatus& model) {
  const v1::PullJob& job = model.job();
  return {{"id", model.ref().id()},
          {"model", model.ref().model()},
          {"version", model.ref().version()},
          {"namespace", model.name_space()},
          {"bytes", model.bytes()},
          {"blocks", model.blocks()},
          {"blocks_known", model.blocks_known()},
          {"pinned", model.pinned()},
          {"job",
           {{"number", job.number()},
            {"state", JobWord(job.state())},
            {"bytes_done", job.bytes_done()},
            {"source_bytes", job.source_bytes()},
            {"elapsed_ms", job.elapsed_ms()},
            {"time_left_ms", job.time_left_ms()},
            {"error", job.error()}}}};
}

Json EventJson(const v1::ClusterEvent& event) {
  return {
      {"sequence", event.sequence()}, {"time", TimeText(event.unix_ms())}, {"kind", event.kind()},
      {"node", event.node()},         {"namespace", event.name_space()},   {"text", event.text()}};
}

// `key` and `key`_left_out, of the first kRowsMax.
template <typename Rows, typename ToJson>
void AddRows(Json* json, const std::string& key, const Rows& rows, ToJson to_json) {
  Json list = Json::array();
  int left_out = 0;
  for (const auto& row : rows) {
    if (static_cast<int>(list.size()) < kRowsMax) {
      list.push_back(to_json(row));
    } else {
      ++left_out;
    }
  }
  (*json)[key] = std::move(list);
  (*json)[key + "_left_out"] = left_out;
}

Json TotalsJson(const v1::ListNodesReply& nodes) {
  uint64_t up = 0, down = 0, left = 0, draining = 0, drained = 0, processes = 0;
  v1::NodeUsage sum;
  for (const v1::NodeStatus& n : nodes.nodes()) {
    const v1::NodeState state = n.node().state();
    up += state == v1::NODE_LIVE ? 1 : 0;
    down += state == v1::NODE_DOWN ? 1 : 0;
    left += state == v1::NODE_LEFT ? 1 : 0;
    draining += n.drain() == v1::DRAIN_DRAINING ? 1 : 0;
    drained += n.drain() == v1::DRAIN_DRAINED ? 1 : 0;
    if (state != v1::NODE_LIVE) continue;
    processes += n.node().boot_id();
    sum.set_dram_used_bytes(sum.dram_used_bytes() + n.usage().dram_used_bytes());
    sum.set_dram_total_bytes(sum.dram_total_bytes() + n.usage().dram_total_bytes());
    sum.set_ssd_used_bytes(sum.ssd_used_bytes() + n.usage().ssd_used_bytes());
    sum.set_ssd_total_bytes(sum.ssd_total_bytes() + n.usage().ssd_total_bytes());
    sum.set_objects(sum.objects() + n.usage().objects());
    sum.set_gets(sum.gets() + n.usage().gets());
    sum.set_hits(sum.hits() + n.usage().hits());
  }
  return {
      {"servers",
       {{"up", up}, {"down", down}, {"left", left}, {"draining", draining}, {"drained", drained}}},
      {"dram_used_bytes", sum.dram_used_bytes()},
      {"dram_total_bytes", sum.dram_total_bytes()},
      {"ssd_used_bytes", sum.ssd_used_bytes()},
      {"ssd_total_bytes", sum.ssd_total_bytes()},
      {"objects", sum.objects()},
      {"gets", sum.gets()},
      {"hits", sum.hits()},
      // Changes when one of the processes does, as their ids are random: sums of others do not
      // compare.
      {"processes", fmt::format("{:016x}", processes)}};
}

}  // namespace

std::string ClusterJson(const ClusterFacts& facts) {
  const v1::ListNodesReply& nodes = *facts.nodes;
  Json json;
  json["health"] = HealthWord(HealthOf(nodes, facts.view));
  json["cluster"] = nullptr;
  if (nodes.cluster() != 0) json["cluster"] = ClusterText(ClusterId(nodes.cluster()));
  json["now_unix_ms"] = nodes.now_unix_ms();
  json["heartbeat_ms"] = nodes.heartbeat_ms();
  json["lease_ms"] = nodes.lease_ms();
  json["view"] = nullptr;
  if (facts.view != nullptr) {
    json["view"] = {{"term", facts.view->version().term()},
                    {"epoch", facts.view->version().epoch()},
                    {"frozen", facts.view->frozen()}};
  }
  json["store_is_old"] = nodes.store_is_old();
  json["slots"] = kSlotCount;
  json.update(TotalsJson(nodes));
  std::vector<const v1::NodeStatus*> by_rank;
  for (const v1::NodeStatus& n : nodes.nodes()) by_rank.push_back(&n);
  std::ranges::stable_sort(by_rank, {}, [&](const auto* n) { return RankOf(*n, facts); });
  AddRows(&json, "nodes", by_rank, [](const auto* n) { return NodeJson(*n); });
  AddRows(&json, "namespaces", facts.namespaces->namespaces(),
          [&](const auto& one) { return NamespaceJson(one, *facts.namespaces); });
  AddRows(&json, "models", facts.models->models(), ModelJson);
  json["events"] = Json::array();
  if (facts.events != nullptr) {
    for (const v1::ClusterEvent& event : facts.events->events())
      json["events"].push_back(EventJson(event));
  }
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace ems::controller
