#pragma once
// The prefill side of the link to one decode worker: prompts are computed, and their KV goes out
// over the ring as soon as it is there.
//
// A probe goes beside the KV again and again, so that a decode worker that has no room (it answers:
// its slots are taken) is told from a link that is dead (XDS §6.2); a dead link is hung up. One
// that answers and never takes anything loses what is handed over to it. Invariant: the events of
// prefill_peer.h. Bound: the worker's; `senders` hand-overs at a time.
#include <cstdint>
#include <memory>

#include "common/clock.h"
#include "common/status.h"
#include "fabric/emulated_link.h"
#include "fabric/ring_sender.h"
#include "pdc/prefill_peer.h"
#include "pdc/prefill_worker.h"

namespace ems::pdc {

struct PrefillPortOptions {
  uint32_t senders = 2;  // hand-overs at a time, each a thread; 1 to 16
  Duration probe_every = std::chrono::milliseconds(500);
  Duration probe_timeout = std::chrono::seconds(1);
  uint32_t probes_lost_max = 3;  // one after the other: the link is dead
  // A hand-over of which nothing is taken for so long is lost, though probes are answered: its KV
  // would fill the HBM until its deadline. At least 1 ms.
  Duration stall_limit = std::chrono::seconds(10);
  const fabric::EmulatedPath* path = nullptr;  // of the RDMA plane; must outlive the port
};

struct PrefillPortStats {
  uint64_t handed_over = 0, failed = 0;
  uint64_t stalled = 0;  // of those that failed: nothing of them was taken
  uint64_t probes = 0, probes_lost = 0, probes_saturated = 0;
  Duration round_trip{0};  // of the last probe
  // Of several links; the longest round trip.
  PrefillPortStats& operator+=(const PrefillPortStats& other);
};

// Threading: thread-safe.
class PrefillPort final {
 public:
  // `worker` must outlive this. Errors: kInvalidArgument  options out of range
  static Result<std::unique_ptr<PrefillPort>> Create(PrefillWorker* worker,
                                                     std::unique_ptr<fabric::RingSender> ring,
                                                     const PrefillPortOptions& options);
  // Hangs up and ends all that is under way.
  ~PrefillPort();
  PrefillPort(const PrefillPort&) = delete;
  PrefillPort& operator=(const PrefillPort&) = delete;

  // As PrefillPeer's. `task.id` is unique among those of this port.
  Status Start(PrefillTask task, PrefillEvents events);
  void Cancel(uint64_t id);
  // Errors: kUnavailable  the link is dead: the port is of no use any more
  Status link();
  PrefillPortStats stats();

 private:
  struct Impl;
  explicit PrefillPort(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ems::pdc
