#pragma once
// The memory that another process shares: found by its bytes, and changed under its feet, as
// a DRAM cell that goes bad would. For children of the test (ptrace's rule for /proc/PID/mem).
#include <fcntl.h>
#include <sys/types.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"

namespace ems::testing {

// Threading: one thread.
class ProcessMemory final {
 public:
  explicit ProcessMemory(pid_t pid) : pid_(pid) {
    fd_ = ::open(("/proc/" + std::to_string(pid) + "/mem").c_str(), O_RDWR | O_CLOEXEC);
  }
  ~ProcessMemory() {
    if (fd_ >= 0) ::close(fd_);
  }
  ProcessMemory(const ProcessMemory&) = delete;
  ProcessMemory& operator=(const ProcessMemory&) = delete;

  // Replaces `wanted` by `replacement`, of equal length, wherever it lies in writable mappings of
  // memfds, until it is nowhere: a segment may be mapped twice. Returns how often.
  // Errors: kUnavailable  the memory cannot be read or written
  Result<int> Replace(std::string_view wanted, std::string_view replacement) const {
    int count = 0;
    for (const Region& region : SharedRegions()) {
      std::string bytes(region.bytes, '\0');
      if (::pread(fd_, bytes.data(), bytes.size(), region.begin) !=
          static_cast<ssize_t>(bytes.size())) {
        return Error(StatusCode::kUnavailable, "cannot read {} B of process {}", bytes.size(),
                     pid_);
      }
      for (size_t at = bytes.find(wanted); at != std::string::npos;
           at = bytes.find(wanted, at + wanted.size())) {
        if (::pwrite(fd_, replacement.data(), replacement.size(),
                     region.begin + static_cast<off_t>(at)) !=
            static_cast<ssize_t>(replacement.size())) {
          return Error(StatusCode::kUnavailable, "cannot write to process {}", pid_);
        }
        ++count;
      }
    }
    return count;
  }

 private:
  struct Region {
    off_t begin = 0;
    size_t bytes = 0;
  };
  std::vector<Region> SharedRegions() const {
    std::vector<Region> regions;
    std::ifstream maps("/proc/" + std::to_string(pid_) + "/maps");
    for (std::string line; std::getline(maps, line);) {
      uint64_t begin = 0, end = 0;
      char access[5] = {};
      if (std::sscanf(line.c_str(), "%lx-%lx %4s", &begin, &end, access) != 3) continue;
      if (std::string_view(access) != "rw-s" || line.find("/memfd:ems-") == std::string::npos)
        continue;
      regions.push_back({static_cast<off_t>(begin), end - begin});
    }
    return regions;
  }

  const pid_t pid_;
  int fd_ = -1;
};

}  // namespace ems::testing
