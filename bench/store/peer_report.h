#pragma once
// The report and the gates of `ems-bench store --peers`.
#include <cstdint>
#include <vector>

#include "bench/harness/report.h"
#include "bench/sides/side_result.h"

namespace ems::bench {

// Sizes of the comparison, unless the user names others, and those that its gates need.
inline constexpr uint64_t kPeerSizes[] = {4 * kKiB, 64 * kKiB, kMiB, 9 * kMiB};

// EMS's operations a second beside those of the better peer of each round: the median ratio. Not a
// number unless EMS and both peers were measured. As values are of one size, GB/s have the same
// ratio.
double VsBetterPeer(const SideResults& results, SideOp op, uint64_t value_bytes, uint32_t callers);

// A table for Get and one for Put, a row a size, number of callers and side; the same as JSON.
void ReportPeers(const SideResults& results, Report* report);

// Timed gates: at each size of kPeerSizes and each number of callers EMS is no slower than the
// better peer.
void JudgePeers(const SideResults& results, const std::vector<uint32_t>& callers, Report* report);

}  // namespace ems::bench
