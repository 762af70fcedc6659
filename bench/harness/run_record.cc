#include "bench/harness/run_record.h"

#include <fmt/format.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string_view>

#include "bench/harness/commit.h"  // made by the build
#include "bench/harness/figures.h"
#include "common/bytes.h"

namespace ems::bench {
namespace {

// Of the first core. ARM's kernels name none: the architecture stands for it.
std::string CpuModel(const std::string& otherwise) {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return otherwise;
}

double LoadAverage() {
  double load = 0;
  return ::getloadavg(&load, 1) == 1 ? load : std::nan("");
}

uint64_t MemoryBytes() {
  const long pages = ::sysconf(_SC_PHYS_PAGES), bytes = ::sysconf(_SC_PAGESIZE);
  return pages > 0 && bytes > 0 ? static_cast<uint64_t>(pages) * static_cast<uint64_t>(bytes) : 0;
}

std::string Date(std::time_t time) {
  std::tm utc{};
  std::array<char, 32> text{};
  ::gmtime_r(&time, &utc);
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text.data();
}

}  // namespace

RunRecord RunRecord::Begin() {
  RunRecord record;
  utsname system{};
  ::uname(&system);
  record.cpu = CpuModel(system.machine);
  record.cores = ::sysconf(_SC_NPROCESSORS_ONLN);
  record.memory_bytes = MemoryBytes();
  record.kernel = fmt::format("{} {} {}", system.sysname, system.release, system.machine);
  record.version = EMS_VERSION;
  record.commit = kCommit;
  record.begun = std::time(nullptr);
  record.load_before = record.load_after = LoadAverage();
  return record;
}

void RunRecord::End() { load_after = LoadAverage(); }

std::string RunRecord::Text() const {
  return fmt::format("{}, {} core{}, {}; {}\nEMS {}{}; {}; load average {} before, {} after\n", cpu,
                     cores, Plural(static_cast<uint64_t>(cores)), FormatBytes(memory_bytes), kernel,
                     version, commit.empty() ? "" : fmt::format(" ({})", commit), Date(begun),
                     Fixed(load_before, 2), Fixed(load_after, 2));
}

nlohmann::ordered_json RunRecord::ToJson() const {
  return {{"cpu", cpu},
          {"cores", cores},
          {"memory_bytes", memory_bytes},
          {"kernel", kernel},
          {"version", version},
          {"commit", commit},
          {"date", Date(begun)},
          {"load_before", load_before},
          {"load_after", load_after}};
}

}  // namespace ems::bench
