#pragma once
// Tells the operator, in the log, when the view freezes and when it thaws.
#include "common/logging.h"
#include "mp_controller/membership.h"

namespace ems::controller {

// `frozen`: the view before it was.
inline void LogFreeze(const Proposal& proposal, bool frozen) {
  if (proposal.frozen && !frozen) {
    EMS_LOG(kError, "mp_controller",
            "{} of {} servers are gone: the view is frozen and their slots answer nothing. Bring "
            "servers back, or accept the loss (emsctl)",
            proposal.missing, proposal.members);
  } else if (!proposal.frozen && frozen) {
    EMS_LOG(kInfo, "mp_controller", "view thawed missing={} members={}", proposal.missing,
            proposal.members);
  }
}

}  // namespace ems::controller
