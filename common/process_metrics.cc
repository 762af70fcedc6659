#include "common/process_metrics.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string_view>

#include "common/clock.h"
#include "common/version.h"

namespace ems {
namespace {

std::string ReadFile(const char* path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The whole numbers behind the first `skip` words.
double WordAt(std::string_view text, int skip) {
  std::istringstream words{std::string(text)};
  std::string word;
  for (int i = 0; i < skip; ++i) words >> word;
  double value = 0;
  words >> value;
  return value;
}

double StartSeconds() {
  // Behind the program's name, which may hold anything, the start time is the 20th word.
  const std::string stat = ReadFile("/proc/self/stat");
  const size_t name_end = stat.rfind(") ");
  const std::string machine = ReadFile("/proc/stat");
  const size_t boot = machine.find("\nbtime ");
  if (name_end == std::string::npos || boot == std::string::npos) return 0;
  return WordAt(std::string_view(machine).substr(boot), 1) +
         WordAt(std::string_view(stat).substr(name_end + 2), 19) /
             static_cast<double>(sysconf(_SC_CLK_TCK));
}

double OpenDescriptors() {
  std::error_code error;
  const std::filesystem::directory_iterator files("/proc/self/fd", error);
  if (error) return 0;
  return static_cast<double>(std::distance(begin(files), end(files)) - 1);  // but this one
}

}  // namespace

void AppendProcessMetrics(std::string* text) {
  const auto show = [text](std::string_view name, std::string_view type, std::string_view help,
                           double value) {
    fmt::format_to(std::back_inserter(*text), "# HELP {0} {2}\n# TYPE {0} {1}\n{0} {3:.15g}\n",
                   name, type, help, value);
  };
  fmt::format_to(std::back_inserter(*text),
                 "# HELP ems_build_info Always 1; the version that runs here, and its commit\n"
                 "# TYPE ems_build_info gauge\n"
                 "ems_build_info{{version=\"{}\",commit=\"{}\"}} 1\n",
                 Version(), EMS_COMMIT);
  show("process_cpu_seconds_total", "counter", "User and system CPU time used",
       std::chrono::duration<double>(ProcessCpuTime()).count());
  show("process_resident_memory_bytes", "gauge", "Resident memory, the pool included",
       WordAt(ReadFile("/proc/self/statm"), 1) * static_cast<double>(sysconf(_SC_PAGESIZE)));
  show("process_open_fds", "gauge", "File descriptors open", OpenDescriptors());
  rlimit limit{};
  (void)getrlimit(RLIMIT_NOFILE, &limit);
  show("process_max_fds", "gauge", "File descriptors that may be open",
       static_cast<double>(limit.rlim_cur));
  show("process_start_time_seconds", "gauge", "When the process began, in seconds since 1970",
       StartSeconds());
}

}  // namespace ems
