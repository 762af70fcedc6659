#pragma once
// A prefill instance as a decode worker sees it: in this process (local_prefill_peer.h) or in
// another (rpc/remote_prefill_peer.h).
#include <functional>
#include <memory>
#include <string>

#include "common/status.h"
#include "fabric/emulated/ring_receiver.h"
#include "pdc/prefill/prefill_worker.h"

namespace ems::pdc {

// As last heard; asking costs no message.
struct PrefillHealth {
  // Not OK: nothing is sent there; it is dead, stands still, has no link. kDeadlineExceeded: it is
  // late to answer; what it has may still come.
  Status status;
  double queued_cost = 0;  // what waits there to be computed, in tokens
};

// The events of one prompt. Called on a thread of the peer's, without a lock; they do not block.
struct PrefillEvents {
  // Once, unless Start failed: the first token, or why there is none.
  std::function<void(Result<PrefillOutcome>)> on_done;
  // Once after an outcome: the KV has left whole, or will not come (then why). What has left may
  // still be on its way to the receiver's blocks.
  std::function<void(Status)> on_sent;
};

// Threading: thread-safe.
class PrefillPeer {
 public:
  virtual ~PrefillPeer() = default;
  virtual const std::string& name() const = 0;
  virtual PrefillHealth health() = 0;
  // What its KV arrives by; null while there is no link. A new one after the link broke: a
  // caller that awaits something keeps the one that it has posted it to.
  virtual std::shared_ptr<fabric::RingReceiver> ring() = 0;
  // Computes a prompt, then sends its KV as hand-off `task.id`, which the caller has posted to
  // ring() (KvArrival). Does not block. Errors: those of PrefillWorker::Submit    kUnavailable  no
  // link, or the peer is gone
  virtual Status Start(PrefillTask task, PrefillEvents events) = 0;
  // Ends it as soon as possible: the events that are still to come say kCancelled. Unknown ids are
  // ignored.
  virtual void Cancel(uint64_t id) = 0;
};

}  // namespace ems::pdc
