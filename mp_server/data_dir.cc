#include "mp_server/data_dir.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <filesystem>

#include "common/hash.h"
#include "common/logging.h"

namespace ems::server {
namespace {

// {packed view, its checksum}: 16 bytes.
using ViewRecord = std::array<uint64_t, 2>;

uint64_t RecordSum(uint64_t packed) {
  return Hash64(std::as_bytes(std::span(&packed, 1)), 0x766965770a);
}

Status Errno(std::string_view what, const std::string& path) {
  return Error(StatusCode::kUnavailable, "{} {}: {}", what, path, fabric::ErrnoText(errno));
}

}  // namespace

Result<DataDir> DataDir::Open(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) return Error(StatusCode::kUnavailable, "data_dir {}: {}", path, error.message());
  const std::string lock_path = path + "/lock";
  fabric::Fd lock(::open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!lock.valid()) return Errno("cannot open", lock_path);
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    return Error(
        StatusCode::kFailedPrecondition,
        "data_dir {} is in use by another mp-server: stop it, or give this one a folder of its own",
        path);
  }
  DataDir dir(path, std::move(lock));
  dir.ReadHighestView();
  return dir;
}

void DataDir::ReadHighestView() {
  const std::string path = path_ + "/view";
  const fabric::Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return;
  ViewRecord record{};
  if (::read(file.get(), &record, sizeof(record)) == sizeof(record) &&
      record[1] == RecordSum(record[0])) {
    highest_view_ = ViewVersion::FromPacked(record[0]);
    return;
  }
  EMS_LOG(kWarn, "mp_server", "view file damaged, starting without it path={}", path);
}

Status DataDir::SetHighestView(ViewVersion version) {
  const ViewRecord record = {version.packed(), RecordSum(version.packed())};
  const std::string path = path_ + "/view";
  const std::string next = path + ".next";
  {
    const fabric::Fd file(::open(next.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    if (!file.valid()) return Errno("cannot write", next);
    if (::write(file.get(), &record, sizeof(record)) != sizeof(record))
      return Errno("cannot write", next);
    if (::fdatasync(file.get()) != 0) return Errno("cannot sync", next);
  }
  if (::rename(next.c_str(), path.c_str()) != 0) return Errno("cannot rename", next);
  const fabric::Fd folder(::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder.valid() || ::fsync(folder.get()) != 0) return Errno("cannot sync", path_);
  highest_view_ = version;
  return OkStatus();
}

}  // namespace ems::server
