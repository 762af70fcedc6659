#pragma once
// What a prefill process serves to decode workers in other processes: the seam between the service
// (prefill_service.h) and those who compute.
#include <cstdint>
#include <memory>

#include "common/status.h"
#include "fabric/ring_sender.h"
#include "pdc/prefill_peer.h"

namespace ems::pdc {

// Names a decode worker's ring. Never used again.
using PrefillLinkId = uint64_t;

struct PrefillPulse {
  Status status;       // not OK: it should be sent nothing
  uint64_t ticks = 0;  // steps that were done since the start
  bool busy = false;   // there is something to do: whoever is busy and does not tick stands still
  double queued_cost = 0;  // tokens, as PrefillHealth
  uint64_t kv_tokens_free = 0;
  uint32_t tasks = 0;  // that are here
};

// Threading: thread-safe.
class PrefillHost {
 public:
  virtual ~PrefillHost() = default;
  // A ring to a decode worker. May block for a moment. Errors: kResourceExhausted  too many links
  virtual Result<PrefillLinkId> AttachRing(std::unique_ptr<fabric::RingSender> ring) = 0;
  // The decode worker is gone: what is there for it ends, and its ring goes. Once for each link.
  // Events that are still to come may come later.
  virtual void DetachRing(PrefillLinkId link) = 0;
  // Whether the link is sound, as it was found last. Does not block. Errors: kUnavailable
  virtual Status LinkStatus(PrefillLinkId link) = 0;

  // As PrefillPeer::Start, for a link's ring; ids are unique within a link. Does not block.
  // Errors: those of PrefillWorker::Submit    kUnavailable  no such link
  virtual Status Start(PrefillLinkId link, PrefillTask task, PrefillEvents events) = 0;
  // Unknown ids are ignored. Does not block.
  virtual void Cancel(PrefillLinkId link, uint64_t id) = 0;
  // Does not block.
  virtual PrefillPulse Pulse() = 0;
};

}  // namespace ems::pdc
