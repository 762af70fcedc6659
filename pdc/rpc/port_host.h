#pragma once
// A prefill worker as what a prefill process serves: a port for each decode worker's ring.
//
// Bound: links_max ports. A port that was detached goes on a thread of this, as its end waits for
// what is under way.
#include <cstdint>
#include <map>
#include <memory>

#include "common/guarded.h"
#include "common/status.h"
#include "common/thread_pool.h"
#include "pdc/prefill_port.h"
#include "pdc/rpc/prefill_host.h"

namespace ems::pdc {

// Threading: thread-safe.
class PortHost final : public PrefillHost {
 public:
  // `worker` must outlive this.
  PortHost(PrefillWorker* worker, const PrefillPortOptions& options, size_t links_max);
  ~PortHost() override;
  PortHost(const PortHost&) = delete;
  PortHost& operator=(const PortHost&) = delete;

  Result<PrefillLinkId> AttachRing(std::unique_ptr<fabric::RingSender> ring) override;
  void DetachRing(PrefillLinkId link) override;
  Status LinkStatus(PrefillLinkId link) override;
  Status Start(PrefillLinkId link, PrefillTask task, PrefillEvents events) override;
  void Cancel(PrefillLinkId link, uint64_t id) override;
  PrefillPulse Pulse() override;

  // Of all links that there have been; the round trip is of those that are here.
  PrefillPortStats stats();

 private:
  struct State {
    std::map<PrefillLinkId, std::shared_ptr<PrefillPort>> ports;
    PrefillLinkId links = 0;
    PrefillPortStats gone;  // of ports that are no more
  };
  // Of a port that nobody names any more.
  void End(std::shared_ptr<PrefillPort> port);
  // Null: no such link.
  std::shared_ptr<PrefillPort> Find(PrefillLinkId link);

  PrefillWorker* const worker_;
  const PrefillPortOptions options_;
  const size_t links_max_;
  Guarded<State> state_;
  ThreadPool reaper_;
};

}  // namespace ems::pdc
