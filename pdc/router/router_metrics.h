#pragma once
// The counts of a router's requests: as numbers for its caller, and as metrics.
#include <cstdint>
#include <string>
#include <vector>

#include "common/guarded.h"
#include "common/metrics.h"
#include "common/status.h"

namespace ems::pdc {

struct RequestRouterStats {
  uint64_t requests = 0;           // taken
  uint64_t refused = 0;            // not taken
  uint64_t attempts = 0;           // given to a decode worker that took them
  uint64_t failovers = 0;          // attempts that were lost, and their requests went on
  uint64_t recomputed_tokens = 0;  // prompts and answers of those, to be computed again
  uint64_t finished = 0, failed = 0, cancelled = 0;
  uint32_t waiting = 0;  // without a decode worker
  uint32_t running = 0;  // with one
};

// Threading: thread-safe.
class RouterMetrics final {
 public:
  // `peers`: names of the decode workers. `registry` must outlive it.
  RouterMetrics(MetricsRegistry* registry, const std::vector<std::string>& peers);

  // A request begins to wait, unless `waiting_max` do already: false then.
  bool TryTake(uint32_t waiting_max);
  void OnRefused(StatusCode code);
  // From waiting to running.
  void OnAttempt();
  // From running to waiting; `tokens` are to be computed again.
  void OnFailover(uint64_t tokens);
  // Its last event; OK: it has finished.
  void OnEnded(bool was_waiting, StatusCode code);
  void OnPeer(int peer, bool healthy, uint64_t requests, uint64_t kv_tokens);

  RequestRouterStats stats() const;

 private:
  struct PeerGauges {
    Gauge healthy, requests, kv_tokens;
  };
  void Show(const RequestRouterStats& stats) const;

  MetricsRegistry* registry_;
  Counter requests_, attempts_, failovers_, recomputed_tokens_;
  Gauge waiting_, running_;
  std::vector<PeerGauges> peers_;
  mutable Guarded<RequestRouterStats> stats_;
};

}  // namespace ems::pdc
