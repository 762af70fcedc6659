#pragma once
// Folders whose names outlive a power cut. What is synced in a new folder is lost with the folder
// when the one above it has not been synced since.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "common/status.h"

namespace ems {

// Makes the folder if it is not there; the one above it is. Durable when it returns, also what an
// earlier process has made. A folder above that may not be read is taken for durable.
// Cost: one fsync.   Errors: kUnavailable  it cannot be made, or synced
inline Status MakeDurableFolder(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directory(folder, error);
  if (error) return Error(StatusCode::kUnavailable, "{}: {}", folder.string(), error.message());
  const std::filesystem::path above = folder.has_parent_path() ? folder.parent_path() : ".";
  const int fd = ::open(above.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return OkStatus();
  if (::fsync(fd) != 0) error.assign(errno, std::generic_category());
  ::close(fd);
  if (!error) return OkStatus();
  return Error(StatusCode::kUnavailable, "cannot sync {}: {}", above.string(), error.message());
}

// The same, and those above it that are not there.
inline Status MakeDurableFolders(std::filesystem::path folder) {
  if (!folder.has_filename()) folder = folder.parent_path();
  std::error_code error;
  if (folder.has_parent_path() && !std::filesystem::exists(folder.parent_path(), error))
    EMS_RETURN_IF_ERROR(MakeDurableFolders(folder.parent_path()));
  return MakeDurableFolder(folder);
}

}  // namespace ems
