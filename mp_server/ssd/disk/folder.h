#pragma once
// The files of a folder and their sizes, without exceptions.
#include <filesystem>
#include <string>
#include <vector>

#include "common/bytes.h"
#include "common/status.h"
#include "mp_server/ssd/disk/aligned_buffer.h"

namespace ems::ssd {

// Errors: kUnavailable  the folder cannot be read
inline Result<std::vector<std::filesystem::path>> ListFolder(const std::string& folder) {
  std::vector<std::filesystem::path> paths;
  std::error_code error;
  std::filesystem::directory_iterator at(folder, error);
  for (; !error && at != std::filesystem::directory_iterator(); at.increment(error))
    paths.push_back(at->path());
  if (error) return Error(StatusCode::kUnavailable, "{}: {}", folder, error.message());
  return paths;
}

// What its files take of the disk, in whole blocks; 0 when it cannot be read.
inline uint64_t FolderBytes(const std::string& folder) {
  const auto paths = ListFolder(folder);
  if (!paths.ok()) return 0;
  uint64_t bytes = 0;
  for (const std::filesystem::path& path : *paths) {
    std::error_code error;
    const uint64_t size = std::filesystem::file_size(path, error);
    if (!error) bytes += RoundUp(size, kBlockBytes);
  }
  return bytes;
}

}  // namespace ems::ssd
