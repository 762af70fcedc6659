#include "mp_server/memory/host_memory.h"

#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <optional>
#include <sstream>
#include <string_view>

namespace ems::server {
namespace {

// Whole files of the kernel's; nullopt: not there.
std::optional<std::string> TextOf(const std::string& path) {
  std::ifstream file(path);
  if (!file) return std::nullopt;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::optional<uint64_t> NumberIn(std::string_view text) {
  const size_t digit = text.find_first_of("0123456789");
  if (digit == std::string_view::npos) return std::nullopt;
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data() + digit, text.data() + text.size(), value);
  if (error != std::errc()) return std::nullopt;
  return value;
}

// The number of a line "name 123" or "name: 123 kB".
std::optional<uint64_t> LineOf(std::string_view text, std::string_view name) {
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    if (line.starts_with(name) && line.size() > name.size() &&
        (line[name.size()] == ' ' || line[name.size()] == ':'))
      return NumberIn(line.substr(name.size()));
    begin = end + 1;
  }
  return std::nullopt;
}

std::optional<uint64_t> FileNumber(const std::string& path) {
  const std::optional<std::string> text = TextOf(path);
  return text.has_value() ? NumberIn(*text) : std::nullopt;
}

bool IsFolder(const std::string& path) {
  struct stat about = {};
  return stat(path.c_str(), &about) == 0 && S_ISDIR(about.st_mode);
}

// What the kernel would drop before it kills: clean page cache of files, not of shared memory.
uint64_t CacheOf(const std::string& folder, bool is_v2) {
  const std::optional<std::string> stat = TextOf(folder + "/memory.stat");
  if (!stat.has_value()) return 0;
  uint64_t bytes = 0;
  for (const char* name : {"active_file", "inactive_file"})
    bytes += LineOf(*stat, is_v2 ? std::string(name) : std::string("total_") + name).value_or(0);
  return bytes;
}

}  // namespace

void HostMemory::AddGroups(const std::string& mount, const std::string& path, bool is_v2) {
  // Inside a container the path may be the host's, while the mount shows the container's own group.
  std::string below = IsFolder(mount + path) ? path : "";
  while (true) {
    while (!below.empty() && below.back() == '/') below.pop_back();
    groups_.push_back({mount + below, is_v2});
    if (below.empty()) return;
    below.resize(below.rfind('/'));
  }
}

// Lines are "number:controllers:path"; version 2 has number 0 and no controllers.
void HostMemory::FindGroups(const std::string& text) {
  known_ = text;
  groups_.clear();
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string path = line.substr(second + 1);
    if (!path.starts_with('/') || path.find("..") != std::string::npos) continue;
    if (controllers == ",,") {
      const std::string unified = roots_.cgroup + "/unified";
      AddGroups(IsFolder(unified) ? unified : roots_.cgroup, path, true);
    } else if (controllers.find(",memory,") != std::string::npos) {
      AddGroups(roots_.cgroup + "/memory", path, false);
    }
  }
}

void HostMemory::Apply(const Group& group, MemoryReading* reading) {
  const std::string& folder = group.folder;
  // "max", the word for no limit in version 2, is no number.
  const auto limit = FileNumber(folder + (group.is_v2 ? "/memory.max" : "/memory.limit_in_bytes"));
  const auto used =
      FileNumber(folder + (group.is_v2 ? "/memory.current" : "/memory.usage_in_bytes"));
  if (!limit.has_value() || !used.has_value()) return;
  reading->limit_bytes = std::min(reading->limit_bytes, *limit);
  const uint64_t left = *limit - std::min(*limit, *used);
  if (left >= reading->available_bytes) return;  // spares the costlier file
  reading->available_bytes =
      std::min({reading->available_bytes, *limit, left + CacheOf(folder, group.is_v2)});
}

// Of this process's own group where the kernel counts that, else of the machine.
uint64_t HostMemory::Stalled() const {
  std::optional<std::string> text;
  for (const Group& group : groups_) {
    if (group.is_v2 && !text.has_value()) text = TextOf(group.folder + "/memory.pressure");
  }
  if (!text.has_value()) text = TextOf(roots_.proc + "/pressure/memory");
  if (!text.has_value() || !text->starts_with("some")) return 0;
  const size_t total = text->find("total=");
  return total == std::string::npos ? 0
                                    : NumberIn(std::string_view(*text).substr(total)).value_or(0);
}

Result<MemoryReading> HostMemory::Read() {
  const std::string path = roots_.proc + "/meminfo";
  const std::optional<std::string> meminfo = TextOf(path);
  if (!meminfo.has_value()) return Error(StatusCode::kUnavailable, "{} cannot be read", path);
  const auto available = LineOf(*meminfo, "MemAvailable");
  const auto total = LineOf(*meminfo, "MemTotal");
  if (!available.has_value() || !total.has_value())
    return Error(StatusCode::kUnavailable, "{} has no MemAvailable and MemTotal", path);
  MemoryReading reading;
  reading.available_bytes = *available * 1024;
  reading.limit_bytes = *total * 1024;
  const std::string mine = TextOf(roots_.proc + "/self/cgroup").value_or("");
  if (mine != known_) FindGroups(mine);
  for (const Group& group : groups_) Apply(group, &reading);
  reading.stalled_us = Stalled();
  return reading;
}

}  // namespace ems::server
