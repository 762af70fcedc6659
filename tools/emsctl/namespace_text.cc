#include "tools/emsctl/namespace_text.h"

#include <nlohmann/json.hpp>

#include "common/bytes.h"
#include "tools/emsctl/policy_words.h"
#include "tools/terminal.h"

namespace ems::emsctl {
namespace {

using Json = nlohmann::ordered_json;
using terminal::Align;
using terminal::Table;

constexpr const char* kNone = "no namespace; make one with `emsctl namespace create NAME`\n";

NamespaceCounts CountsOf(const NamespaceInfo& info, const CountsByNamespace& counts) {
  const auto found = counts.find(info.name);
  return found == counts.end() ? NamespaceCounts() : found->second;
}

std::string Limit(uint64_t bytes) { return bytes == 0 ? "-" : FormatBytes(bytes); }

}  // namespace

std::string NamespacesText(const std::vector<NamespaceInfo>& namespaces) {
  if (namespaces.empty()) return kNone;
  Table table({{"name", Align::kLeft},
               {"id"},
               {"generation"},
               {"DRAM quota"},
               {"DRAM reserved"},
               {"SSD quota"},
               {"SSD reserved"},
               {"durability", Align::kLeft},
               {"checksum", Align::kLeft},
               {"immutable", Align::kLeft},
               {"replicas"}});
  for (const NamespaceInfo& info : namespaces) {
    table.AddRow({info.name, fmt::format("{}", info.ref.id.value()),
                  fmt::format("{}", info.ref.generation), Limit(info.dram_quota_bytes),
                  Limit(info.dram_reserved_bytes), Limit(info.ssd_quota_bytes),
                  Limit(info.ssd_reserved_bytes), std::string(DurabilityWord(info)),
                  std::string(ChecksumWord(info.checksum)), info.immutable ? "yes" : "no",
                  fmt::format("{}", info.replicas)});
  }
  return table.Render();
}

Json NamespaceJson(const NamespaceInfo& info) {
  Json json;
  json["name"] = info.name;
  json["id"] = info.ref.id.value();
  json["generation"] = info.ref.generation;
  json["dram_quota_bytes"] = info.dram_quota_bytes;
  json["dram_reserved_bytes"] = info.dram_reserved_bytes;
  json["ssd_quota_bytes"] = info.ssd_quota_bytes;
  json["ssd_reserved_bytes"] = info.ssd_reserved_bytes;
  json["durability"] = DurabilityWord(info);
  json["checksum"] = ChecksumWord(info.checksum);
  json["immutable"] = info.immutable;
  json["replicas"] = info.replicas;
  return json;
}

std::string NamespaceUsageText(const std::vector<NamespaceInfo>& namespaces,
                               const CountsByNamespace& counts) {
  if (namespaces.empty()) return kNone;
  Table table({{"name", Align::kLeft},
               {"objects"},
               {"DRAM"},
               {"of quota"},
               {"reserved"},
               {"evicted"},
               {"SSD quota"},
               {"durability", Align::kLeft}});
  for (const NamespaceInfo& info : namespaces) {
    const NamespaceCounts one = CountsOf(info, counts);
    table.AddRow({info.name, fmt::format("{}", one.objects), FormatBytes(one.value_bytes),
                  Limit(info.dram_quota_bytes), Limit(info.dram_reserved_bytes),
                  fmt::format("{}", one.evicted_objects), Limit(info.ssd_quota_bytes),
                  std::string(DurabilityWord(info))});
  }
  return table.Render();
}

Json NamespaceUsageJson(const NamespaceInfo& info, const CountsByNamespace& counts) {
  const NamespaceCounts one = CountsOf(info, counts);
  Json json = NamespaceJson(info);
  json["objects"] = one.objects;
  json["dram_used_bytes"] = one.value_bytes;
  json["evicted_objects"] = one.evicted_objects;
  json["evicted_bytes"] = one.evicted_bytes;
  return json;
}

}  // namespace ems::emsctl
