#pragma once
// `ems-bench store --peers`: EMS over TCP beside memcached and Redis over TCP, with several numbers
// of callers, in one run.
//
// Each side is one server process with as many threads as EMS's has for connections; each caller is
// a thread with a connection of its own. EMS checksums every value in both directions, the others
// checksum none. Invariant and bound: as SideBench.
#include <cstdint>
#include <vector>

#include "bench/harness/bench_command.h"
#include "bench/harness/report.h"
#include "bench/sides/side_bench.h"
#include "common/status.h"

namespace ems::bench {

struct PeerPlan {
  ClusterFlags flags;
  std::vector<uint64_t> sizes;
  uint64_t working_set_bytes = 256 * kMiB;  // of one size
  SideSettings settings;
};

// What a run with these flags does. `sizes` empty: kPeerSizes; `rounds` 0: five.
PeerPlan MakePeerPlan(ClusterFlags flags, std::vector<uint64_t> sizes, uint64_t rounds,
                      std::vector<uint32_t> callers);
// Measures, prints, and checks the gates that were asked for.
// Errors: kFailedPrecondition  not exactly one server, on this host, with room    and those of
// SideBench. A peer that is not installed is left out, and its gates fail.
Status ComparePeers(const PeerPlan& plan, Report* report);

}  // namespace ems::bench
