#pragma once
// How long a server that is asked to stop serves on: until others have its slots, and what they
// want of it. A pure state machine driven by (what the controller says, now).
//
// Bound: `most` from the start; with no controller, or with nobody to take the slots, no time.
#include <cstdint>
#include <optional>

#include "common/clock.h"

namespace ems::server {

// What the controller says to a server that is to stop.
enum class StopAnswer {
  kNone,         // nothing yet
  kServeOn,      // others take over what it has
  kMayStop,      // nobody needs it any more, or nobody could have its slots
  kUnreachable,  // no controller answers, and none has since the server asked
};

// Threading: one thread (main's).
class PlannedStop final {
 public:
  // Clients hear of the view that gives the slots to others when this server does, or somewhat
  // later: who asks by the one before is told so, and does not meet a server that is gone.
  static constexpr Duration kClientsHear = std::chrono::milliseconds(500);
  static constexpr Duration kLookEvery = std::chrono::milliseconds(20);

  PlannedStop(TimePoint now, Duration most) : until_(now + most) {}

  // `owned_slots`: by the view that is installed.
  bool IsOver(StopAnswer answer, uint32_t owned_slots, TimePoint now);

 private:
  const TimePoint until_;
  std::optional<TimePoint> free_since_;  // it owns nothing
};

}  // namespace ems::server
