#include "mp_server/data_dir.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <filesystem>

#include "common/hash.h"
#include "common/logging.h"
#include "common/random_id.h"

namespace ems::server {
namespace {

constexpr std::string_view kViewFile = "view";
constexpr std::string_view kLineageFile = "lineage";

// {number, its checksum}: 16 bytes.
using NumberRecord = std::array<uint64_t, 2>;

uint64_t RecordSum(uint64_t number) {
  return Hash64(std::as_bytes(std::span(&number, 1)), 0x766965770a);
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
  dir.highest_view_ = ViewVersion::FromPacked(dir.ReadRecord(kViewFile).value_or(0));
  dir.lineage_ = dir.ReadRecord(kLineageFile).value_or(0);
  return dir;
}

std::optional<uint64_t> DataDir::ReadRecord(std::string_view name) const {
  const std::string path = fmt::format("{}/{}", path_, name);
  const fabric::Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return std::nullopt;
  NumberRecord record{};
  if (::read(file.get(), &record, sizeof(record)) == sizeof(record) &&
      record[1] == RecordSum(record[0])) {
    return record[0];
  }
  EMS_LOG(kWarn, "mp_server", "{} file damaged, starting without it path={}", name, path);
  return std::nullopt;
}

Status DataDir::WriteRecord(std::string_view name, uint64_t number) const {
  const NumberRecord record = {number, RecordSum(number)};
  const std::string path = fmt::format("{}/{}", path_, name);
  const std::string next = path + ".next";
  {
    const fabric::Fd file(::open(next.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    if (!file.valid()) return Errno("cannot write", next);
    if (::write(file.get(), &record, sizeof(record)) != sizeof(record))
      return Errno("cannot write", next);
    if (::fdatasync(file.get()) != 0) return Errno("cannot sync", next);
  }
  if (::rename(next.c_str(), path.c_str()) != 0) return Errno("cannot rename", next);
  return SyncFolder();
}

Status DataDir::SyncFolder() const {
  const fabric::Fd folder(::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder.valid() || ::fsync(folder.get()) != 0) return Errno("cannot sync", path_);
  return OkStatus();
}

Status DataDir::SetHighestView(ViewVersion version) {
  EMS_RETURN_IF_ERROR(WriteRecord(kViewFile, version.packed()));
  highest_view_ = version;
  return OkStatus();
}

Status DataDir::BeginLineage() {
  const uint64_t lineage = RandomId();
  const Status written = WriteRecord(kLineageFile, lineage);
  // A disk without room may still forget: then nothing that is stored outlives the next restart.
  if (!written.ok()) return EndLineage();
  lineage_ = lineage;
  return OkStatus();
}

Status DataDir::EndLineage() {
  lineage_ = 0;
  const std::string path = fmt::format("{}/{}", path_, kLineageFile);
  if (::unlink(path.c_str()) != 0)
    return errno == ENOENT ? OkStatus() : Errno("cannot remove", path);
  return SyncFolder();
}

}  // namespace ems::server
