#pragma once
// The limits and the usage of one namespace on this server, at one moment.
#include <cstdint>
#include <string>

#include "cluster/hit_curve.h"
#include "common/clock.h"
#include "common/ids.h"

namespace ems::server {

struct NamespaceUsage {
  NamespaceRef ref;
  std::string name;
  uint64_t objects = 0;
  uint64_t objects_max = 0;
  uint64_t value_bytes = 0;        // charged to the quota
  uint64_t quota_bytes = 0;        // this server's part; 0: no limit but the pool
  uint64_t quota_total_bytes = 0;  // of all servers together
  uint64_t reserved_bytes = 0;
  uint64_t segment_bytes = 0;  // memory it holds
  uint64_t chunk_bytes = 0;    // of it, what objects take: values, headers, rounding
  uint64_t evicted_objects = 0;
  uint64_t evicted_bytes = 0;
  Duration eviction_age{};       // how long the last of them had not been used
  Duration coldest_age{};        // how long the object that goes next has not been; zero: none
  uint64_t count_evictions = 0;  // of them, those because of objects_max
  uint64_t damaged_objects = 0;  // dropped since the start: their bytes had changed in memory
  uint64_t pinned_objects = 0;
  uint64_t kept_objects = 0;   // of lost slots, for their new owners
  uint64_t kept_bytes = 0;     // their values
  uint64_t touches = 0;        // uses that attached clients have reported
  uint64_t retired_bytes = 0;  // evicted or removed, but a client on this host still looks at them
  uint64_t shared_index_bytes = 0;
  uint64_t shared_index_left_out = 0;
  // Of value_bytes, what a key leads to: all of it when nothing is going on.
  uint64_t linked_bytes = 0;
  HitCurve curve{};           // what other amounts of memory would bring
  uint64_t samples_lost = 0;  // look-ups of sampled keys that clients' rings had no room for
};

}  // namespace ems::server
