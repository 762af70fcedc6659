#include "pdc/prefill/local_prefill_peer.h"

#include <utility>

#include "fabric/emulated/ring_pair.h"

namespace ems::pdc {

Result<std::unique_ptr<LocalPrefillPeer>> LocalPrefillPeer::Create(std::string name,
                                                                   PrefillWorker* worker,
                                                                   const Options& options) {
  EMS_ASSIGN_OR_RETURN(auto pair, fabric::MakeRingPair(options.ring));
  // This link cannot be made again, and both ends die together: a lost probe says that the
  // machine is starved, no more.
  PrefillPortOptions port_options = options.port;
  port_options.probes_lost_max = UINT32_MAX;
  EMS_ASSIGN_OR_RETURN(auto port,
                       PrefillPort::Create(worker, std::move(pair.sender), port_options));
  return std::unique_ptr<LocalPrefillPeer>(new LocalPrefillPeer(
      std::move(name), worker, std::move(pair.receiver), std::move(port), options.stall_limit));
}

PrefillHealth LocalPrefillPeer::health() {
  const PrefillWorkerStats stats = worker_->stats();
  PrefillHealth health{port_->link(), stats.queued_cost};
  auto watch = watch_.Lock();
  const Status moving = watch->Observe(stats.ticks, stats.busy, Clock::System().Now());
  if (health.status.ok()) health.status = moving;
  return health;
}

}  // namespace ems::pdc
