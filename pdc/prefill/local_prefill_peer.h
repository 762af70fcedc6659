#pragma once
// A prefill worker of this process as a decode worker's peer: a port, and a ring between two
// arenas of one process.
#include <memory>
#include <string>

#include "common/clock.h"
#include "common/guarded.h"
#include "common/status.h"
#include "fabric/emulated/ring_receiver.h"
#include "pdc/prefill/prefill_peer.h"
#include "pdc/prefill/prefill_port.h"
#include "pdc/scheduling/stall_watch.h"

namespace ems::pdc {

// Threading: thread-safe.
class LocalPrefillPeer final : public PrefillPeer {
 public:
  struct Options {
    PrefillPortOptions port{};
    fabric::RingOptions ring{};
    Duration stall_limit = std::chrono::seconds(30);  // without a tick
  };
  // For one decode worker. `worker` must outlive this. Errors: those of MakeRingPair and
  // PrefillPort::Create
  static Result<std::unique_ptr<LocalPrefillPeer>> Create(std::string name, PrefillWorker* worker,
                                                          const Options& options);

  const std::string& name() const override { return name_; }
  PrefillHealth health() override;
  std::shared_ptr<fabric::RingReceiver> ring() override { return ring_; }
  Status Start(PrefillTask task, PrefillEvents events) override {
    return port_->Start(std::move(task), std::move(events));
  }
  void Cancel(uint64_t id) override { port_->Cancel(id); }
  PrefillPortStats stats() { return port_->stats(); }

 private:
  LocalPrefillPeer(std::string name, PrefillWorker* worker,
                   std::shared_ptr<fabric::RingReceiver> ring, std::unique_ptr<PrefillPort> port,
                   Duration stall_limit)
      : name_(std::move(name)),
        worker_(worker),
        ring_(std::move(ring)),
        port_(std::move(port)),
        watch_(std::in_place, stall_limit) {}
  const std::string name_;
  PrefillWorker* const worker_;
  const std::shared_ptr<fabric::RingReceiver> ring_;
  const std::unique_ptr<PrefillPort> port_;
  Guarded<StallWatch> watch_;
};

}  // namespace ems::pdc
