#pragma once
// Helpers for a daemon's main: the signals that stop it, and the ready file, which says that it
// serves.
#include <csignal>
#include <string>

#include "common/clock.h"
#include "common/status.h"

namespace ems {

// Abseil remembers in which order mutexes are locked and reports cycles: a check for debugging, on
// in Debian's build, and a twelfth of the CPU of a process with 10,000 gRPC streams. Off from here
// on. For a program's main, never for a library: it counts for the whole process.
void SkipLockOrderChecks();

// SIGTERM and SIGINT, blocked from here on for this thread and those that are made later, and
// waited for. SIGPIPE is ignored. Threading: one thread (main's), before it makes others.
class StopSignals final {
 public:
  StopSignals();
  // Sleeps up to `timeout`: the signal that came, 0: none.
  int Wait(Duration timeout) const;

 private:
  sigset_t signals_;
};

// Writes `line` beside `path` and renames: a reader sees all of it or nothing.
// Errors: kUnavailable  it cannot be written
Status WriteReadyFile(const std::string& path, const std::string& line);

}  // namespace ems
