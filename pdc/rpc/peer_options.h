#pragma once
// Options of the watch over a peer in another process.
#include "common/clock.h"

namespace ems::pdc {

struct PeerWatchOptions {
  Duration pulse_every = std::chrono::milliseconds(500);
  Duration call_timeout = std::chrono::seconds(1);  // of a pulse, and of each step of connecting
  // Without an answer to a pulse for longer than this it is dead. A connection that breaks says so
  // at once, if calls are under way.
  Duration dead_after = std::chrono::seconds(3);
  // Busy, and not counting on for longer: it stands still. More than the longest step takes.
  Duration stall_limit = std::chrono::seconds(10);
};

}  // namespace ems::pdc
