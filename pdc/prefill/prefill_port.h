#pragma once
// The prefill side of the link to one decode worker: prompts are computed, and their KV goes out
// over the ring as soon as it is there.
//
// A probe goes beside the KV again and again, so that a decode worker that has no room (it answers:
// its entries are taken) is told from a link that is dead (XDS §6.2); a dead link is hung up. One
// that answers and never takes anything loses what is handed over to it. Invariant: the events of
// prefill_peer.h. Bound: the worker's; `senders` hand-overs at a time.
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "common/clock.h"
#include "common/guarded.h"
#include "common/status.h"
#include "common/thread_pool.h"
#include "fabric/emulated/emulated_link.h"
#include "fabric/emulated/ring_sender.h"
#include "pdc/prefill/prefill_peer.h"
#include "pdc/prefill/prefill_worker.h"

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

// The jobs of a prefill instance for one decode worker. Threading: thread-safe.
class PrefillLink {
 public:
  virtual ~PrefillLink() = default;
  // As PrefillPeer's. `task.id` is unique among those of this link.
  virtual Status Start(PrefillTask task, PrefillEvents events) = 0;
  virtual void Cancel(uint64_t id) = 0;
  // As it was found last; does not block. Errors: kUnavailable  it is dead, and of no use any more
  virtual Status link() = 0;
};

// Threading: thread-safe.
class PrefillPort final : public PrefillLink {
 public:
  // `worker` must outlive this. Errors: kInvalidArgument  options out of range
  static Result<std::unique_ptr<PrefillPort>> Create(PrefillWorker* worker,
                                                     std::unique_ptr<fabric::RingSender> ring,
                                                     const PrefillPortOptions& options);
  // Hangs up and ends all that is under way.
  ~PrefillPort() override;
  PrefillPort(const PrefillPort&) = delete;
  PrefillPort& operator=(const PrefillPort&) = delete;

  Status Start(PrefillTask task, PrefillEvents events) override;
  void Cancel(uint64_t id) override;
  Status link() override;
  PrefillPortStats stats();

 private:
  struct Entry {
    uint64_t worker_id = 0;
    Deadline deadline;
    PrefillEvents events;
    std::shared_ptr<std::atomic<bool>> cancelled = std::make_shared<std::atomic<bool>>(false);
  };
  struct State {
    std::map<uint64_t, Entry> entries;  // by hand-off
    std::deque<uint64_t> finished;      // to be handed over
    Status link;
    PrefillPortStats stats;
    bool stopping = false;
  };
  PrefillPort(PrefillWorker* worker, std::unique_ptr<fabric::RingSender> ring,
              const PrefillPortOptions& options);
  void Computed(uint64_t id, Result<PrefillOutcome> outcome);
  void SendLoop();
  void Send(uint64_t id, uint64_t worker_id, Deadline deadline, const std::atomic<bool>* cancelled);
  void ProbeLoop();
  void Break(const Status& why);

  const PrefillPortOptions options_;
  PrefillWorker* const worker_;
  const std::unique_ptr<fabric::RingSender> ring_;
  Guarded<State> state_;
  std::condition_variable work_, quiet_;
  StopFlag stop_;
  std::vector<Thread> threads_;
};

}  // namespace ems::pdc
