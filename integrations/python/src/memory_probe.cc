#include "integrations/python/src/memory_probe.h"

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <vector>

namespace ems::python {

bool IsReachable(std::span<const MutableBytes> parts) {
  constexpr size_t kAtOnce = 512;
  for (size_t first = 0; first < parts.size(); first += kAtOnce) {
    std::array<std::byte, 2 * kAtOnce> seen;
    std::vector<iovec> ends;
    for (const MutableBytes part : parts.subspan(first, std::min(kAtOnce, parts.size() - first))) {
      if (part.empty()) continue;
      ends.push_back({part.data(), 1});
      ends.push_back({&part.back(), 1});
    }
    iovec into{seen.data(), ends.size()};
    const ssize_t read = ::process_vm_readv(::getpid(), &into, 1, ends.data(), ends.size(), 0);
    if (read < 0 && errno != EFAULT) return true;
    if (read != static_cast<ssize_t>(ends.size())) return false;
  }
  return true;
}

}  // namespace ems::python
