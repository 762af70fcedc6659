#include "tools/emsctl/doctor/host_checks.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string_view>

#include "common/bytes.h"
#include "common/machine_check.h"
#include "common/parse_number.h"
#include "fabric/shm/numa_nodes.h"
#include "fabric/shm/shm_segment.h"

namespace ems::emsctl {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kSwapUsedBytesMax = 64 * kMiB;  // what the kernel swaps out while nothing lacks
constexpr uint64_t kLockedBytesLeast = 8 * kMiB;
constexpr size_t kDaemonsMax = 16;
constexpr size_t kListenersMax = 65536;

// The first line of a small file; nothing when it cannot be read.
std::optional<std::string> Line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  return line;
}

std::optional<uint64_t> Number(const std::string& path) {
  const std::optional<std::string> line = Line(path);
  return line ? ParseNumber<uint64_t>(*line) : std::nullopt;
}

// "SwapTotal:       4096 kB" of /proc/meminfo, in bytes; 0 where there is no such line.
uint64_t MemInfo(const HostPlaces& places, std::string_view name) {
  std::ifstream file(places.proc + "/meminfo");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(name) || line.size() <= name.size() || line[name.size()] != ':') continue;
    std::istringstream rest(line.substr(name.size() + 1));
    uint64_t kib = 0;
    return rest >> kib ? kib * kKiB : 0;
  }
  return 0;
}

// "always madvise [never]" → "never"
std::string Chosen(const std::optional<std::string>& line) {
  if (!line) return "not known";
  const size_t begin = line->find('['), end = line->find(']');
  return begin < end && end != std::string::npos ? line->substr(begin + 1, end - begin - 1) : *line;
}

// Whether the kernel is of this version or a later one.
bool KernelIsFrom(const HostPlaces& places, int major, int minor) {
  std::istringstream release(Line(places.proc + "/sys/kernel/osrelease").value_or(""));
  int first = 0, second = 0;
  char dot = 0;
  release >> first >> dot >> second;
  return first > major || (first == major && second >= minor);
}

std::string Kernel(const HostPlaces& places) {
  return Line(places.proc + "/sys/kernel/osrelease").value_or("not known");
}

std::string ShmemPages(const HostPlaces& places) {
  return Chosen(Line(places.sys + "/kernel/mm/transparent_hugepage/shmem_enabled"));
}

// Whether servers get transparent huge pages when they ask: from Linux 6.1 on unless it is denied.
bool GivesTransparentPages(const HostPlaces& places) {
  const std::string word = ShmemPages(places);
  if (word == "deny" || word == "not known") return false;
  return word != "never" || KernelIsFrom(places, 6, 1);
}

std::string LimitText(uint64_t limit, bool bytes) {
  if (limit == kUnlimited) return "unlimited";
  return bytes ? FormatBytes(limit) : fmt::format("{}", limit);
}

}  // namespace

Finding CheckHugePages(const HostPlaces& places, const HostNeeds& needs) {
  const std::string folder = places.sys + "/kernel/mm/hugepages/hugepages-2048kB";
  const uint64_t total = Number(folder + "/nr_hugepages").value_or(0);
  const uint64_t free = Number(folder + "/free_hugepages").value_or(0);
  const uint64_t wanted = (needs.dram_bytes + 2 * kMiB - 1) / (2 * kMiB);
  Finding finding{.check = "huge pages",
                  .found = fmt::format("{} of {} of 2 MiB free", free, total)};
  if (needs.dram_bytes > 0) finding.found += fmt::format(", the pool takes {}", wanted);
  const bool enough = total > 0 && total >= wanted;
  if (enough || needs.huge_pages == "off") return finding;
  if (needs.huge_pages != "require" && GivesTransparentPages(places)) {
    finding.found += "; transparent ones instead";
    return finding;
  }
  finding.level = needs.huge_pages == "require" ? Level::kFail : Level::kWarn;
  finding.mend = fmt::format(
      "sysctl -w vm.nr_hugepages={} (and in /etc/sysctl.d, as memory has holes after some days)",
      wanted > 0 ? fmt::format("{}", wanted) : "<dram.bytes / 2 MiB>");
  return finding;
}

Finding CheckTransparentPages(const HostPlaces& places) {
  const std::string folder = places.sys + "/kernel/mm/transparent_hugepage";
  Finding finding{
      .check = "transparent huge pages",
      .found = fmt::format("shmem_enabled {}, enabled {}, kernel {}", ShmemPages(places),
                           Chosen(Line(folder + "/enabled")), Kernel(places))};
  if (GivesTransparentPages(places)) return finding;
  finding.level = Level::kWarn;
  finding.mend = fmt::format("echo advise > {}/shmem_enabled, or reserve huge pages", folder);
  return finding;
}

Finding CheckMemory(const HostPlaces& places, const HostNeeds& needs) {
  const uint64_t all = MemInfo(places, "MemTotal");
  const uint64_t container = MachineMemoryBytes(places.sys + "/fs/cgroup/memory.max");
  const uint64_t most = container > 0 && container < all ? container : all;
  Finding finding{
      .check = "memory",
      .found = fmt::format("{} available of {}", FormatBytes(MemInfo(places, "MemAvailable")),
                           FormatBytes(all))};
  if (most < all) finding.found += fmt::format(", {} for this container", FormatBytes(most));
  if (needs.dram_bytes == 0) return finding;
  finding.found += fmt::format(", the pool takes {}", FormatBytes(needs.dram_bytes));
  if (needs.dram_bytes < most) return finding;
  finding.level = Level::kFail;
  finding.mend =
      fmt::format("lower dram.bytes: {}MiB leaves a fifth to others", most / 5 * 4 / kMiB);
  return finding;
}

Finding CheckSwap(const HostPlaces& places) {
  const uint64_t total = MemInfo(places, "SwapTotal");
  const uint64_t used = total - std::min(total, MemInfo(places, "SwapFree"));
  Finding finding{.check = "swap", .found = "none"};
  if (total == 0) return finding;
  finding.found =
      fmt::format("{} of {} in use, vm.swappiness {}", FormatBytes(used), FormatBytes(total),
                  Line(places.proc + "/sys/vm/swappiness").value_or("not known"));
  if (used <= kSwapUsedBytesMax) return finding;
  finding.level = Level::kWarn;
  finding.mend =
      "what is swapped out of a pool is read from the disk again: swapoff -a, or sysctl -w "
      "vm.swappiness=1; huge pages are never swapped";
  return finding;
}

Finding CheckNuma(const HostPlaces& places) {
  Finding finding{.check = "NUMA"};
  const auto nodes = fabric::UsableNumaNodes();
  if (!nodes.ok()) {
    finding.level = Level::kWarn;
    finding.found = Message(nodes.status());
    finding.mend = "give the container CAP_SYS_NICE, or set dram.numa: none";
    return finding;
  }
  finding.found = nodes->size() < 2 ? "one node, or as the process is bound"
                                    : "nodes " + fabric::NodesText(*nodes);
  const uint64_t reclaim = Number(places.proc + "/sys/vm/zone_reclaim_mode").value_or(0);
  if (reclaim == 0) return finding;
  finding.level = Level::kWarn;
  finding.found += fmt::format(", vm.zone_reclaim_mode {}", reclaim);
  finding.mend =
      "a node evicts before another one with free memory is asked: sysctl -w "
      "vm.zone_reclaim_mode=0";
  return finding;
}

Finding CheckSeals() {
  const Status sealing = fabric::ShmSegment::CheckSealing();
  if (sealing.ok()) return {.check = "memfd seals", .found = "hold"};
  return {.level = Level::kWarn,
          .check = "memfd seals",
          .found = std::string(Message(sealing)),
          .mend =
              "servers share no memory here and serve over sockets; Linux 5.1 or later has "
              "them"};
}

Finding CheckIoUring(const HostPlaces& places, const HostNeeds& needs) {
  const uint64_t disabled = Number(places.proc + "/sys/kernel/io_uring_disabled").value_or(0);
  Finding finding{.check = "io_uring", .found = disabled == 0 ? "allowed" : "disabled"};
  if (disabled == 0 || !needs.ssd) return finding;
  finding.level = Level::kWarn;
  finding.mend = "the SSD tier goes over threads: sysctl -w kernel.io_uring_disabled=0";
  return finding;
}

Finding CheckDescriptors(const std::string& whose, const Limit& limit, const HostNeeds& needs) {
  Finding finding{.check = "file descriptors",
                  .found = fmt::format("{} may have {}, a server takes up to {}", whose,
                                       LimitText(limit.hard, false), needs.descriptors)};
  if (limit.hard >= needs.descriptors) return finding;
  finding.level = Level::kWarn;
  finding.mend = "it takes fewer connections: raise LimitNOFILE of the unit, or ulimit -Hn";
  return finding;
}

Finding CheckLockedMemory(const HostPlaces& places, const Limit& limit, const HostNeeds& needs) {
  Finding finding{.check = "locked memory",
                  .found = fmt::format("{}, and none is locked", LimitText(limit.hard, true))};
  // Until Linux 5.12 the rings of io_uring count.
  if (limit.hard >= kLockedBytesLeast || !needs.ssd || KernelIsFrom(places, 5, 12)) return finding;
  finding.level = Level::kWarn;
  finding.mend =
      fmt::format("io_uring of kernel {} needs some: raise LimitMEMLOCK to 8 MiB", Kernel(places));
  return finding;
}

std::vector<DaemonLimit> DaemonLimits(const HostPlaces& places) {
  std::vector<DaemonLimit> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(places.proc, error)) {
    const std::string folder = entry.path().string();
    if (!ParseNumber<uint64_t>(entry.path().filename().string())) continue;
    if (Line(folder + "/comm") != "mp-server") continue;
    std::ifstream limits(folder + "/limits");
    constexpr std::string_view kName = "Max open files";
    for (std::string line; std::getline(limits, line);) {
      if (!line.starts_with(kName)) continue;
      std::istringstream rest(line.substr(kName.size()));
      std::string soft, hard;
      rest >> soft >> hard;
      found.push_back({.whose = "mp-server " + entry.path().filename().string(),
                       .descriptors = {.soft = ParseNumber<uint64_t>(soft).value_or(kUnlimited),
                                       .hard = ParseNumber<uint64_t>(hard).value_or(kUnlimited)}});
    }
    if (found.size() >= kDaemonsMax) break;
  }
  return found;
}

std::vector<Listener> Listeners(const HostPlaces& places) {
  constexpr std::string_view kListening = "0A";
  std::vector<Listener> found;
  for (const char* const table : {"/net/tcp", "/net/tcp6"}) {
    std::ifstream file(places.proc + table);
    std::string line;
    std::getline(file, line);  // the titles
    while (std::getline(file, line) && found.size() < kListenersMax) {
      std::istringstream words(line);
      std::string number, local, remote, state;
      words >> number >> local >> remote >> state;
      const size_t colon = local.find(':');
      if (state != kListening || colon == std::string::npos) continue;
      const auto port = ParseNumber<uint16_t>(local.substr(colon + 1), 16);
      if (!port) continue;
      found.push_back({.port = *port, .everywhere = local.find_first_not_of('0') == colon});
    }
  }
  return found;
}

}  // namespace ems::emsctl
