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

std::string Limit(uint64_t bytes) { return bytes == 0 ? "-" : FormatBytes(bytes); }

}  // namespace

std::string NamespacesText(const std::vector<NamespaceInfo>& namespaces) {
  if (namespaces.empty()) return "no namespace; make one with `emsctl namespace create NAME`\n";
  Table table({{"name", Align::kLeft},
               {"id"},
               {"generation"},
               {"DRAM quota"},
               {"DRAM reserved"},
               {"SSD quota"},
               {"SSD reserved"},
               {"durability", Align::kLeft},
               {"checksum", Align::kLeft},
               {"immutable", Align::kLeft}});
  for (const NamespaceInfo& info : namespaces) {
    table.AddRow({info.name, fmt::format("{}", info.ref.id.value()),
                  fmt::format("{}", info.ref.generation), Limit(info.dram_quota_bytes),
                  Limit(info.dram_reserved_bytes), Limit(info.ssd_quota_bytes),
                  Limit(info.ssd_reserved_bytes), std::string(DurabilityWord(info)),
                  std::string(ChecksumWord(info.checksum)), info.immutable ? "yes" : "no"});
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
  return json;
}

}  // namespace ems::emsctl
