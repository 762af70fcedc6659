#include "tools/emsctl/server_counts.h"

#include <nlohmann/json.hpp>

namespace ems::emsctl {
namespace {

using Json = nlohmann::json;

uint64_t Count(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_number_unsigned() ? found->get<uint64_t>() : 0;
}

}  // namespace

bool ReadCounts(std::string_view json, ServerCounts* server, CountsByNamespace* namespaces) {
  const Json stats = Json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (!stats.is_object()) return false;
  server->gets = Count(stats, "gets");
  server->hits = Count(stats, "hits");
  server->puts = Count(stats, "puts");
  server->read_bytes = Count(stats, "read_bytes");
  server->stored_bytes = Count(stats, "stored_bytes");
  const auto boot_id = stats.find("boot_id");
  if (boot_id != stats.end() && boot_id->is_string()) server->boot_id = *boot_id;
  const auto pool = stats.find("pool");
  if (pool != stats.end()) server->pool_bytes = Count(*pool, "bytes_max");
  const auto list = stats.find("namespaces");
  if (list == stats.end() || !list->is_array()) return true;
  for (const Json& one : *list) {
    if (!one.is_object()) continue;
    const auto name = one.find("name");
    if (name == one.end() || !name->is_string()) continue;
    NamespaceCounts& total = (*namespaces)[name->get<std::string>()];
    total.objects += Count(one, "objects");
    total.value_bytes += Count(one, "value_bytes");
    total.evicted_objects += Count(one, "evicted_objects");
    total.evicted_bytes += Count(one, "evicted_bytes");
    total.gets += Count(one, "gets");
    total.hits += Count(one, "hits");
    server->objects += Count(one, "objects");
    server->value_bytes += Count(one, "value_bytes");
    server->evicted_objects += Count(one, "evicted_objects");
  }
  return true;
}

CountsByNamespace CountsOf(std::span<const ServerStats> servers) {
  CountsByNamespace counts;
  for (const ServerStats& one : servers) {
    ServerCounts server;
    if (one.json.ok()) (void)ReadCounts(*one.json, &server, &counts);
  }
  return counts;
}

}  // namespace ems::emsctl
