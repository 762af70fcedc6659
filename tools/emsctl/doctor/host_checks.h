#pragma once
// What `emsctl doctor` looks at on this host: what the kernel says of memory and limits, beside
// what a server's configuration wants.
//
// Invariant: a check reads and changes nothing. Bound: a few small files each.
#include <cstdint>
#include <string>
#include <vector>

#include "tools/emsctl/doctor/finding.h"

namespace ems::emsctl {

// Where the kernel tells of itself.
struct HostPlaces {
  std::string proc = "/proc";
  std::string sys = "/sys";
};

// What a server of this host is to have, as its configuration says.
struct HostNeeds {
  uint64_t dram_bytes = 0;  // 0: not known
  std::string huge_pages = "try";
  uint64_t descriptors = 0;
  bool ssd = false;
};

// Of a process: most of what it may have, and what it has now.
struct Limit {
  uint64_t soft = 0;
  uint64_t hard = 0;
};
inline constexpr uint64_t kUnlimited = ~uint64_t{0};

// Reserved 2 MiB pages beside what the pool takes; transparent ones do where the kernel gives them.
Finding CheckHugePages(const HostPlaces& places, const HostNeeds& needs);
Finding CheckTransparentPages(const HostPlaces& places);
// That the pool fits into the machine's memory.
Finding CheckMemory(const HostPlaces& places, const HostNeeds& needs);
// No pool is locked in memory: one that is swapped out answers in milliseconds.
Finding CheckSwap(const HostPlaces& places);
Finding CheckNuma(const HostPlaces& places);
// That a descriptor which is given to a client cannot be written through.
Finding CheckSeals();
Finding CheckIoUring(const HostPlaces& places, const HostNeeds& needs);
// RLIMIT_NOFILE and RLIMIT_MEMLOCK. `whose`: "this shell", "mp-server 4711".
Finding CheckDescriptors(const std::string& whose, const Limit& limit, const HostNeeds& needs);
Finding CheckLockedMemory(const HostPlaces& places, const Limit& limit, const HostNeeds& needs);

// "mp-server PID" and its limit of descriptors, of each that runs here: that counts, not the
// shell's. 16 at most.
struct DaemonLimit {
  std::string whose;
  Limit descriptors;
};
std::vector<DaemonLimit> DaemonLimits(const HostPlaces& places);

// A TCP port of this host that is listened at; `everywhere`: on all addresses of it.
struct Listener {
  uint16_t port = 0;
  bool everywhere = false;
};
std::vector<Listener> Listeners(const HostPlaces& places);

}  // namespace ems::emsctl
