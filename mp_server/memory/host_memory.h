#pragma once
// How much memory the machine, and the cgroups that this process is in, have left.
#include <cstdint>
#include <string>
#include <vector>

#include "common/status.h"

namespace ems::server {

struct MemoryReading {
  // What could be taken without swapping and without an OOM kill: the least of what the machine and
  // what each limit above this process leaves. Page cache of files counts as free.
  uint64_t available_bytes = 0;
  uint64_t limit_bytes = 0;  // the least of the machine's memory and those limits
  uint64_t stalled_us = 0;   // time that tasks have waited for memory since boot; 0: not known
};

// Reads cgroups of both versions; memory of the hugetlb reservation counts as taken, used or not.
// Threading: one thread.
class HostMemory final {
 public:
  // Where the kernel's files are.
  struct Roots {
    std::string proc = "/proc";
    std::string cgroup = "/sys/fs/cgroup";
  };
  HostMemory() : HostMemory(Roots()) {}
  explicit HostMemory(Roots roots) : roots_(std::move(roots)) {}

  // Cost: about ten small files, 0.1 to 0.2 ms.
  // Errors: kUnavailable  /proc/meminfo cannot be read or understood
  Result<MemoryReading> Read();

 private:
  struct Group {  // a cgroup with a limit, or that may get one
    std::string folder;
    bool is_v2 = false;
  };
  void FindGroups(const std::string& text);
  void AddGroups(const std::string& mount, const std::string& path, bool is_v2);
  static void Apply(const Group& group, MemoryReading* reading);
  uint64_t Stalled() const;

  const Roots roots_;
  std::string known_;  // text of /proc/self/cgroup that groups_ come from
  std::vector<Group> groups_;
};

}  // namespace ems::server
