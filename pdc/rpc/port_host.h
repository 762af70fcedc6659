#pragma once
// A prefill worker as what a prefill process serves: a port for each decode worker's ring.
//
// Bound: links_max ports. A port that was released is destroyed on a thread of this, as its end
// waits for what is under way.
#include <memory>
#include <vector>

#include "common/guarded.h"
#include "common/status.h"
#include "common/thread_pool.h"
#include "pdc/prefill/prefill_port.h"
#include "pdc/rpc/prefill_host.h"

namespace ems::pdc {

// Threading: thread-safe.
class PortHost final : public PrefillHost {
 public:
  // `worker` must outlive this.
  PortHost(PrefillWorker* worker, const PrefillPortOptions& options, size_t links_max);
  PortHost(const PortHost&) = delete;
  PortHost& operator=(const PortHost&) = delete;

  Result<std::shared_ptr<PrefillLink>> Attach(std::unique_ptr<fabric::RingSender> ring) override;
  PrefillPulse Pulse() override;

  // Of all links that there have been; the round trip is of those that are here.
  PrefillPortStats stats();

 private:
  struct State {
    std::vector<std::weak_ptr<PrefillPort>> ports;
    PrefillPortStats gone;  // of ports that are no more
  };
  // Of a port that nobody names any more.
  void End(std::shared_ptr<PrefillPort> port);

  PrefillWorker* const worker_;
  const PrefillPortOptions options_;
  const size_t links_max_;
  Guarded<State> state_;
  ThreadPool reaper_;
};

}  // namespace ems::pdc
