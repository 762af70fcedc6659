#pragma once
// Where the two ends of a measured connection run.
//
// Left alone, the scheduler may keep one pair of processes on one core and spread another pair over
// two; the wake-ups of one cost several times those of the other, and a ratio of the two says
// nothing. So the caller goes to one core and every server, EMS's and the raw one, to another, as
// they would be on two machines.
#include <sys/types.h>

#include <span>
#include <vector>

#include "common/status.h"

namespace ems::bench {

// Puts things back when it goes. Threading: one thread, the one that calls.
class CpuPlacement final {
 public:
  CpuPlacement() = default;
  CpuPlacement(const CpuPlacement&) = delete;
  CpuPlacement& operator=(const CpuPlacement&) = delete;
  ~CpuPlacement();

  // The calling thread to the first CPU that it may use, all threads of `servers` to the second.
  // Errors: kFailedPrecondition  fewer than two CPUs    kPermissionDenied  a server of another user
  Status Apart(std::span<const pid_t> servers);

 private:
  struct Moved {
    pid_t thread = 0;
    std::vector<int> cpus;  // where it was allowed before
  };
  Status Move(pid_t thread, int cpu);

  std::vector<Moved> moved_;
};

}  // namespace ems::bench
