#pragma once
// The interface of a prefill process to decode workers in other processes: it separates the service
// (prefill_service.h) from the workers that compute.
#include <cstdint>
#include <memory>

#include "common/status.h"
#include "fabric/emulated/ring_sender.h"
#include "pdc/prefill/prefill_port.h"

namespace ems::pdc {

struct PrefillPulse {
  Status status;       // not OK: it should be sent nothing
  uint64_t ticks = 0;  // steps that were done since the start
  bool busy = false;   // there is something to do: busy without ticks means that it stands still
  double queued_cost = 0;  // tokens, as PrefillHealth
  uint64_t kv_tokens_free = 0;
  uint32_t tasks = 0;  // that are here
};

// Threading: thread-safe.
class PrefillHost {
 public:
  virtual ~PrefillHost() = default;
  // Takes a ring to a decode worker. Releasing the link, before the host goes, ends what
  // is there for it, and its ring; events that are still to come may come later. May block for a
  // moment. Errors: kResourceExhausted  too many links
  virtual Result<std::shared_ptr<PrefillLink>> Attach(std::unique_ptr<fabric::RingSender> ring) = 0;
  // Does not block.
  virtual PrefillPulse Pulse() = 0;
};

}  // namespace ems::pdc
