#pragma once
// How long the calls of one client took, by operation and by the path that they went.
#include <vector>

#include "common/clock.h"
#include "common/latency_set.h"
#include "mp_sdk/client_stats.h"
#include "proto/data_plane.h"

namespace ems::internal {

enum class CallPath : uint8_t { kOneSided, kSocket };

// Threading: thread-safe.
class CallLatencies final {
 public:
  CallLatencies() : latencies_(kOps * kPaths * 2) {}

  // `op`: Get, GetRange, Put, Exists or Remove, of `keys` keys. Cost: a few ns, no lock.
  void Record(wire::Op op, size_t keys, CallPath path, Duration took);
  // Those of the kinds that there have been.
  std::vector<CallLatency> Calls() const;

 private:
  static constexpr size_t kOps = 4;
  static constexpr size_t kPaths = 2;
  LatencySet latencies_;
};

}  // namespace ems::internal
