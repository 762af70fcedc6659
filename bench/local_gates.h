#pragma once
// What EMS promises a client on its server's host, checked against what one run measured.
#include <cstdint>
#include <string>
#include <vector>

#include "bench/local_result.h"
#include "bench/report.h"

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
double OneSidedShareMin(const LocalResults& results);

// One gate a promise, always all of them: what was not measured fails and says why.
// Ratios are medians over paired rounds; "copy" is, in each round, the faster of memcpy
// and EMS's own; "peer" is the better one of redis and
// memcached over Unix sockets, and both must have been measured.
std::vector<LocalGate> JudgeLocal(const LocalResults& results);

}  // namespace ems::bench
