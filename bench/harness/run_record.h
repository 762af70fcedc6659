#pragma once
// What the figures of a run depend on besides its flags: machine, kernel, build, date, and what
// else the machine was doing.
#include <array>
#include <cstdint>
#include <ctime>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace ems::bench {

// Threading: one thread.
struct RunRecord {
  std::string cpu;            // model, as the kernel says it
  long cores = 0;             // that are online
  uint64_t memory_bytes = 0;  // of the machine
  std::string kernel;         // "Linux 6.1.0-18-amd64 x86_64"
  std::string version;        // of EMS, as --version says it
  std::string commit;         // of the source; empty when it was built outside a repository
  std::time_t begun = 0;
  // Load averages of the last minute; not a number where the kernel has none.
  double load_before = 0, load_after = 0;

  static RunRecord Begin();
  void End();
  std::string Text() const;  // two lines
  nlohmann::ordered_json ToJson() const;
};

}  // namespace ems::bench
