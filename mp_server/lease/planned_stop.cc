#include "mp_server/lease/planned_stop.h"

namespace ems::server {

bool PlannedStop::IsOver(StopAnswer answer, uint32_t owned_slots, TimePoint now) {
  if (now >= until_ || answer == StopAnswer::kUnreachable) return true;
  if (owned_slots > 0) {
    free_since_.reset();
    return answer == StopAnswer::kMayStop;  // there is nobody else
  }
  if (!free_since_) free_since_ = now;
  return answer == StopAnswer::kMayStop && now - *free_since_ >= kClientsHear;
}

}  // namespace ems::server
