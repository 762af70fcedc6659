#include "common/machine_check.h"

#include <sys/statvfs.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <utility>

#include "common/bytes.h"
#include "common/logging.h"

namespace ems {
namespace {

namespace fs = std::filesystem;

fs::path Absolute(const std::string& path) {
  std::error_code error;
  const fs::path whole = fs::absolute(path, error).lexically_normal();
  return whole.has_filename() ? whole : whole.parent_path();
}

// `path`, or the nearest above it that is there.
fs::path Nearest(fs::path path) {
  std::error_code error;
  while (!fs::exists(path, error) && path.has_relative_path()) path = path.parent_path();
  return path;
}

// 0: not known.
uint64_t PhysicalBytes() {
  const auto pages = ::sysconf(_SC_PHYS_PAGES), page_bytes = ::sysconf(_SC_PAGESIZE);
  if (pages <= 0 || page_bytes <= 0) return 0;
  return static_cast<uint64_t>(pages) * static_cast<uint64_t>(page_bytes);
}

}  // namespace

Status CheckFolder(std::string_view key, const std::string& path) {
  const fs::path wanted = Absolute(path), nearest = Nearest(wanted);
  std::error_code error;
  if (!fs::is_directory(nearest, error)) {
    return Error(StatusCode::kFailedPrecondition,
                 "\"{}\" is {}: {} is no folder; write a folder, or one that can be made", key,
                 path, nearest.string());
  }
  if (::access(nearest.c_str(), W_OK | X_OK) != 0) {
    return Error(StatusCode::kFailedPrecondition,
                 "\"{}\" is {}: user {} may not write to {}; make the folder and give it to the "
                 "daemon's user, or write another one",
                 key, path, ::geteuid(), nearest.string());
  }
  if (nearest == wanted || nearest == wanted.parent_path()) return OkStatus();
  return Error(StatusCode::kNotFound,
               "\"{}\" is {}: of it only {} exists, and the rest would be made on that disk; is it "
               "misspelt, or a disk not mounted? Else make {}",
               key, path, nearest.string(), wanted.parent_path().string());
}

Status CheckDiskBytes(std::string_view key, uint64_t bytes, const std::string& folder) {
  const fs::path nearest = Nearest(Absolute(folder));
  struct statvfs disk {};
  if (::statvfs(nearest.c_str(), &disk) != 0) return OkStatus();  // nothing is known of it
  const uint64_t size = uint64_t{disk.f_blocks} * disk.f_frsize;
  if (bytes <= size) return OkStatus();
  return Error(
      StatusCode::kOutOfRange,
      "\"{}\" is {}: the disk of {} has {} in all; write less, or a folder of another disk", key,
      FormatBytes(bytes), nearest.string(), FormatBytes(size));
}

uint64_t MachineMemoryBytes(const std::string& limit_file) {
  const uint64_t all = PhysicalBytes();
  std::ifstream file(limit_file);
  uint64_t limit = 0;  // "max": there is none
  return file >> limit && limit < all ? limit : all;
}

Status CheckMemoryBytes(std::string_view key, uint64_t bytes) {
  const uint64_t memory = PhysicalBytes();
  if (memory == 0 || bytes < memory) return OkStatus();
  return Error(StatusCode::kInvalidArgument,
               "\"{}\" is {}: this machine has {} of memory; write less, {}MiB leaves a fifth to "
               "others",
               key, FormatBytes(bytes), FormatBytes(memory), memory / 5 * 4 / kMiB);
}

std::vector<Status> Problems(std::vector<Status> checks) {
  std::erase_if(checks, [](const Status& check) { return check.ok(); });
  return checks;
}

void PrintWarnings(std::string_view program, const std::vector<Status>& problems) {
  for (const Status& problem : problems) {
    std::fputs(fmt::format("{}: warning: on this machine {}\n", program, Message(problem)).c_str(),
               stderr);
  }
}

Status LogWarnings(std::string_view component, const std::vector<Status>& problems) {
  for (const Status& problem : problems) {
    if (problem.code() == StatusCode::kInvalidArgument) return problem;
    EMS_LOG(kWarn, component, "{}", Message(problem));
  }
  return OkStatus();
}

}  // namespace ems
