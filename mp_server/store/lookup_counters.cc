#include "mp_server/store/lookup_counters.h"

#include <algorithm>
#include <utility>

namespace ems::server {

NamespaceLookups::NamespaceLookups(MetricsRegistry* registry, std::string name_space)
    : name_(std::move(name_space)) {
  for (size_t path = 0; path < kLookupPaths; ++path) {
    const std::string path_name =
        path == static_cast<size_t>(LookupPath::kSocket) ? "socket" : "one_sided";
    const auto lookups = [&](const char* op, const char* result) {
      return registry->AddSparseCounter(
          "ems_server_lookups_total",
          "Objects looked up, each once, whether over a socket or in shared memory",
          {{"namespace", name_}, {"op", op}, {"path", path_name}, {"result", result}});
    };
    counters_[path] = {.hits = lookups("get", "hit"),
                       .misses = lookups("get", "miss"),
                       .bytes = registry->AddSparseCounter(
                           "ems_server_lookup_bytes_total", "Value bytes that readers were given",
                           {{"namespace", name_}, {"path", path_name}}),
                       .found = lookups("exists", "hit"),
                       .absent = lookups("exists", "miss")};
  }
}

void NamespaceLookups::Add(LookupPath path, const LookupCounts& counts) const {
  const Counters& counters = counters_[static_cast<size_t>(path)];
  const auto add = [](const Counter& counter, uint64_t by) {
    if (by > 0) counter.Add(static_cast<double>(by));
  };
  add(counters.hits, counts.hits);
  add(counters.misses, counts.misses);
  add(counters.bytes, counts.bytes);
  add(counters.found, counts.found);
  add(counters.absent, counts.absent);
}

LookupCounts NamespaceLookups::Of(LookupPath path) const {
  const Counters& counters = counters_[static_cast<size_t>(path)];
  const auto value = [](const Counter& counter) {
    constexpr double kMost = 0x1p53;  // where a double counts no more; sums of many fit a word
    return static_cast<uint64_t>(std::min(counter.value(), kMost));
  };
  return {.hits = value(counters.hits),
          .misses = value(counters.misses),
          .bytes = value(counters.bytes),
          .found = value(counters.found),
          .absent = value(counters.absent)};
}

const NamespaceLookups& LookupCounters::For(const std::string& name_space) const {
  auto namespaces = namespaces_.Lock();
  return namespaces->try_emplace(name_space, registry_, name_space).first->second;
}

LookupCounts LookupCounters::Total(LookupPath path) const {
  LookupCounts total;
  auto namespaces = namespaces_.Lock();
  for (const auto& [name, lookups] : *namespaces) {
    const LookupCounts one = lookups.Of(path);
    total.hits += one.hits;
    total.misses += one.misses;
    total.bytes += one.bytes;
    total.found += one.found;
    total.absent += one.absent;
  }
  return total;
}

}  // namespace ems::server
