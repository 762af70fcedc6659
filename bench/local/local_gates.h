#pragma once
// Gates of `ems-bench local`: the targets for a client on its server's host, each checked against
// the figures of one run.
#include <cstdint>
#include <string>
#include <vector>

#include "bench/harness/report.h"
#include "bench/sides/side_result.h"

namespace ems::bench {

// Sizes that the gates need beside those of the run.
inline constexpr uint64_t kLocalGateSizes[] = {4 * kKiB, 64 * kKiB, 256 * kKiB,
                                               kMiB,     4 * kMiB,  16 * kMiB};
inline constexpr uint64_t kLocalGateWorkingSet = kGiB;
inline constexpr uint64_t kLocalGateRounds = 5;

struct LocalGate {
  GateResult result;
  std::string why;  // there is no value: what was missing
};

// The least share of keys that EMS read without waking a server, of all sizes and operations that
// read; not a number when nothing was read.
double OneSidedShareMin(const SideResults& results);

// One gate a target, always all of them: a target that was not measured fails and says why.
// Ratios are medians over paired rounds; "copy" is, in each round, the faster of memcpy
// and EMS's own; "peer" is the better one of redis and
// memcached over Unix sockets, and both must have been measured.
std::vector<LocalGate> JudgeLocal(const SideResults& results);

}  // namespace ems::bench
