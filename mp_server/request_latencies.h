#pragma once
// How long requests take on this server, by operation, tier and transport: from the header of a
// request until its answer is with the kernel. So a Put has the time that its value took to arrive,
// and all have what they waited for memory, the disk or the client.
#include <string>

#include "common/clock.h"
#include "common/latency_set.h"
#include "proto/data_plane.h"

namespace ems::server {

// Threading: thread-safe.
class RequestLatencies final {
 public:
  RequestLatencies() : latencies_(kOps * kTiers * kTransports) {}

  // `tier`: where the slowest value came from, or had to go. `local`: over a Unix socket. Requests
  // that are for no object are passed over. Cost: a few ns, no lock.
  void Record(wire::Op op, wire::ItemTier tier, bool local, Duration took);
  // As the histogram ems_server_request_seconds.
  void AppendTo(std::string* text) const;

 private:
  static constexpr size_t kOps = wire::kOpMax + 1;
  static constexpr size_t kTiers = 3;
  static constexpr size_t kTransports = 3;
  LatencySet latencies_;
};

}  // namespace ems::server
