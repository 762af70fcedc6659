#include "fabric/shm/numa_nodes.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <fstream>
#include <optional>

#include "common/bytes.h"
#include "common/check.h"
#include "common/parse_number.h"
#include "fabric/net/socket.h"

namespace ems::fabric {
namespace {

// linux/mempolicy.h
constexpr int kDefault = 0;           // MPOL_DEFAULT
constexpr int kInterleave = 3;        // MPOL_INTERLEAVE
constexpr unsigned kMemsAllowed = 4;  // MPOL_F_MEMS_ALLOWED

// One bit a node.
using Mask = std::array<unsigned long, kNumaNodesMax / (8 * sizeof(unsigned long))>;
constexpr uint32_t kBits = 8 * sizeof(unsigned long);

Status Failed(std::string_view call, int error) {
  const bool denied = error == EPERM || error == EACCES;
  return Error(denied ? StatusCode::kPermissionDenied : StatusCode::kInternal, "{}: {}", call,
               ErrnoText(error));
}

// Whether this process may choose at all: a container's filter refuses one call and not the other.
Status TrySpreading(const NumaNodes& nodes) {
  constexpr uint64_t kBytes = 4 * kKiB;
  void* map = ::mmap(nullptr, kBytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (map == MAP_FAILED) return Failed("mmap", errno);
  Status spread = SpreadOver(nodes, map, kBytes);
  (void)::munmap(map, kBytes);
  return spread;
}

}  // namespace

Result<NumaNodes> UsableNumaNodes() {
  int policy = kDefault;
  Mask allowed{};
  if (::syscall(SYS_get_mempolicy, &policy, nullptr, 0, nullptr, 0) != 0 ||
      ::syscall(SYS_get_mempolicy, nullptr, allowed.data(), kNumaNodesMax, nullptr, kMemsAllowed) !=
          0) {
    if (errno == ENOSYS) return NumaNodes{};
    return Failed("get_mempolicy", errno);
  }
  if (policy != kDefault) return NumaNodes{};
  std::ifstream file("/sys/devices/system/node/has_cpu");
  std::string line;
  std::getline(file, line);
  NumaNodes nodes = ParseNodeList(line);
  std::erase_if(nodes,
                [&](uint32_t node) { return (allowed[node / kBits] >> node % kBits & 1) == 0; });
  if (nodes.size() > 1) EMS_RETURN_IF_ERROR(TrySpreading(nodes));
  return nodes;
}

Status SpreadOver(const NumaNodes& nodes, void* at, uint64_t bytes) {
  Mask mask{};
  for (const uint32_t node : nodes) {
    EMS_CHECK(node < kNumaNodesMax, "node {}", node);
    mask[node / kBits] |= 1UL << node % kBits;
  }
  // One more than there are bits: the kernel takes one off.
  if (::syscall(SYS_mbind, at, bytes, kInterleave, mask.data(), kNumaNodesMax + 1, 0) == 0)
    return OkStatus();
  return Failed("mbind", errno);
}

NumaNodes ParseNodeList(std::string_view text) {
  NumaNodes nodes;
  while (!text.empty()) {
    const std::string_view part = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), part.size() + 1));
    const size_t dash = part.find('-');
    const auto first = ParseNumber<uint32_t>(part.substr(0, dash));
    const auto last =
        dash == std::string_view::npos ? first : ParseNumber<uint32_t>(part.substr(dash + 1));
    if (!first || !last || *last >= kNumaNodesMax) return nodes;
    for (uint32_t node = *first; node <= *last; ++node) nodes.push_back(node);
  }
  return nodes;
}

std::string NodesText(const NumaNodes& nodes) {
  std::string text;
  for (const uint32_t node : nodes) text += (text.empty() ? "" : ",") + std::to_string(node);
  return text;
}

}  // namespace ems::fabric
