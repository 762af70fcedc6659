#pragma once
// What servers' statistics count, of a server and of namespaces. Pure.
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "common/status.h"

namespace ems::emsctl {

struct ServerStats {
  std::string name;
  Result<std::string> json;  // as the server sent it; or why it did not
};

// What a server counts since its start, and holds now.
struct ServerCounts {
  uint64_t gets = 0, hits = 0, puts = 0;  // values; also those that clients read one-sided
  uint64_t read_bytes = 0, stored_bytes = 0;
  uint64_t objects = 0, value_bytes = 0, pool_bytes = 0;
  uint64_t evicted_objects = 0;
  std::string boot_id{};  // another one: counts began again
};
// Over all servers that said something of it.
struct NamespaceCounts {
  uint64_t objects = 0, value_bytes = 0;
  uint64_t evicted_objects = 0, evicted_bytes = 0;
  uint64_t gets = 0, hits = 0;
};
using CountsByNamespace = std::map<std::string, NamespaceCounts>;

// Of one server's statistics; what is not there, or of another type, counts 0. False: no
// statistics.
bool ReadCounts(std::string_view json, ServerCounts* server, CountsByNamespace* namespaces);
// By the namespaces' names.
CountsByNamespace CountsOf(std::span<const ServerStats> servers);

}  // namespace ems::emsctl
