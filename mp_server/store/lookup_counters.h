#pragma once
// How many objects were looked up in each namespace and found, however that was done: over a
// socket, or one-sided, as the clients themselves tell (shm/read_cells.h).
//
// Each look-up counts once: one that was begun one-sided and then took the socket is counted here
// alone. Bound: a set of counters for each namespace that there has been.
#include <array>
#include <cstdint>
#include <map>
#include <string>

#include "common/guarded.h"
#include "common/metrics.h"

namespace ems::server {

struct LookupCounts {
  uint64_t hits = 0, misses = 0;   // values that were asked for: Get, GetRange, GetView, batches
  uint64_t bytes = 0;              // of the hits: what the caller was given
  uint64_t found = 0, absent = 0;  // keys that were only looked for: Exists, Stat, batches
};

enum class LookupPath : uint8_t { kSocket, kOneSided };
inline constexpr size_t kLookupPaths = 2;

// Those of one namespace. Threading: thread-safe.
class NamespaceLookups final {
 public:
  NamespaceLookups(MetricsRegistry* registry, std::string name_space);

  const std::string& name() const { return name_; }
  void Add(LookupPath path, const LookupCounts& counts) const;
  LookupCounts Of(LookupPath path) const;

 private:
  struct Counters {
    Counter hits, misses, bytes, found, absent;
  };
  const std::string name_;
  std::array<Counters, kLookupPaths> counters_;
};

// Threading: thread-safe.
class LookupCounters final {
 public:
  explicit LookupCounters(MetricsRegistry* registry) : registry_(registry) {}

  // Lives as long as this. Cost: a leaf lock.
  const NamespaceLookups& For(const std::string& name_space) const;
  // Of all namespaces.
  LookupCounts Total(LookupPath path) const;

 private:
  MetricsRegistry* const registry_;
  mutable Guarded<std::map<std::string, NamespaceLookups>> namespaces_;
};

}  // namespace ems::server
