#pragma once
// The NUMA nodes of this machine, and shared memory that is spread over them.
//
// Two system calls, as they are: libnuma would be a dependency of every program that maps memory,
// for a wrapper around each. On a machine of one node nothing is asked for.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"

namespace ems::fabric {

using NumaNodes = std::vector<uint32_t>;         // their numbers, in order
inline constexpr uint32_t kNumaNodesMax = 1024;  // the kernel's own limit

// The nodes with cores and with memory that this process may use. Those without cores are memory of
// accelerators and expanders, where a pool has no business. Empty: the kernel knows no nodes, or
// the process was started with a policy of its own (numactl), which is left as it is. Cost: a small
// file and some system calls. Errors: kPermissionDenied  this process may not choose where its
// memory lies: a container without CAP_SYS_NICE, as a rule    kInternal  the calls failed
Result<NumaNodes> UsableNumaNodes();

// Pages of [at, at + bytes) that are yet to be made come from the nodes in turns; from other nodes
// where one has no more. `at` is the start of a page. Errors: as above
Status SpreadOver(const NumaNodes& nodes, void* at, uint64_t bytes);

// "0-2,5" → {0, 1, 2, 5}, as the kernel writes lists; what makes no sense ends it.
NumaNodes ParseNodeList(std::string_view text);
// {0, 1, 5} → "0,1,5".
std::string NodesText(const NumaNodes& nodes);

}  // namespace ems::fabric
