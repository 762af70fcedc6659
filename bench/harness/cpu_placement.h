#pragma once
// Pins the two ends of a measured connection to different CPUs: the calling thread to one, all
// threads of the servers, EMS's and the raw one's, to another.
//
// Left to the scheduler, one pair of processes may share a core and another pair run on two. The
// wake-ups of one cost several times those of the other, so a ratio of the two would measure the
// placement. Two cores correspond to a client and a server on two machines.
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
