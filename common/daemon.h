#pragma once
// Helpers for a daemon's main: the signals that stop it, the limit to how long that takes, and the
// ready file, which says that it serves.
#include <csignal>
#include <string>
#include <utility>

#include "common/clock.h"
#include "common/status.h"
#include "common/thread_pool.h"

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
  // Sleeps up to `timeout`: the signal that came, 0: none. Writes that lines of the log were held
  // back, so call it each second.
  int Wait(Duration timeout) const;

 private:
  sigset_t signals_;
};

// Ends the process when stopping takes longer than it may: at once, as kill -9 would, with an error
// in the log and exit code 1. A disk that answers no more holds the threads that wait for it, and
// the memory that it may still write to, for as long as it likes. Made before what it watches, so
// that it goes last. Threading: one thread (main's).
class StopLimit final {
 public:
  // `folder`: as for EMS_LOG.
  StopLimit(std::string folder, Duration most) : folder_(std::move(folder)), most_(most) {}
  // Stopped in time.
  ~StopLimit();
  // Stopping begins. Once.
  void Begin();

 private:
  const std::string folder_;
  const Duration most_;
  StopFlag stopped_;
  Thread thread_;
};

// Writes `line` beside `path` and renames: a reader sees all of it or nothing.
// Errors: kUnavailable  it cannot be written
Status WriteReadyFile(const std::string& path, const std::string& line);

}  // namespace ems
