#pragma once
// A cgroup with a limit on memory that this process, and those that it starts, are in.
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "common/status.h"

namespace ems::testing {

// Both versions of cgroups. Threading: one thread.
class MemoryGroup final {
 public:
  MemoryGroup() = default;
  // Goes back to the group of before; processes that are left in it keep it alive.
  ~MemoryGroup() { Leave(); }
  MemoryGroup(const MemoryGroup&) = delete;
  MemoryGroup& operator=(const MemoryGroup&) = delete;

  // Errors: kFailedPrecondition  no memory cgroup can be made here
  Status Enter(uint64_t limit_bytes) {
    std::ifstream mine("/proc/self/cgroup");
    for (std::string line; std::getline(mine, line) && parent_.empty();) {
      const std::string path = line.substr(line.rfind(':') + 1);
      if (line.find(":memory:") != std::string::npos) {
        parent_ = "/sys/fs/cgroup/memory" + path;
        limit_file_ = "memory.limit_in_bytes";
        kills_file_ = "memory.oom_control";
      } else if (line.starts_with("0::") && IsThere("/sys/fs/cgroup" + path + "/memory.current")) {
        parent_ = "/sys/fs/cgroup" + path;
        limit_file_ = "memory.max";
        kills_file_ = "memory.events";
      }
    }
    if (parent_.empty()) return No("there is none");
    const std::string folder = parent_ + "/ems-test-" + std::to_string(::getpid());
    std::error_code error;
    if (!std::filesystem::create_directory(folder, error)) return No(error.message());
    folder_ = folder;
    if (!Write(folder_ + "/" + limit_file_, std::to_string(limit_bytes)) ||
        !Write(folder_ + "/cgroup.procs", "0"))
      return No("its files cannot be written");
    return OkStatus();
  }
  // How many processes in it the kernel has killed for want of memory.
  uint64_t Kills() const {
    std::ifstream file(folder_ + "/" + kills_file_);
    for (std::string line; std::getline(file, line);)
      if (line.starts_with("oom_kill ")) return std::stoull(line.substr(9));
    return UINT64_MAX;
  }

 private:
  static bool IsThere(const std::string& path) { return std::filesystem::exists(path); }
  static Status No(const std::string& why) {
    return Error(StatusCode::kFailedPrecondition, "no cgroup for memory can be made: {}", why);
  }
  static bool Write(const std::string& path, const std::string& text) {
    std::ofstream file(path);
    file << text << std::flush;
    return file.good();
  }
  void Leave() {
    if (folder_.empty()) return;
    Write(parent_ + "/cgroup.procs", "0");
    std::error_code ignored;
    std::filesystem::remove(folder_, ignored);
  }

  std::string parent_, folder_, limit_file_, kills_file_;
};

}  // namespace ems::testing
