#include "mp_server/lease/data_dir.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>
#include <vector>

#include "common/bytes.h"
#include "common/check.h"
#include "common/durable_folder.h"
#include "common/hash.h"
#include "common/logging.h"
#include "common/random_id.h"

namespace ems::server {
namespace {

constexpr std::string_view kViewFile = "view";
constexpr std::string_view kLineageFile = "lineage";
constexpr std::string_view kFolderFile = "folder";
constexpr std::string_view kClusterFile = "cluster";
constexpr std::string_view kPlaceFile = "place";
constexpr std::string_view kHandOverFile = "handover";

// {number, its checksum}: 16 bytes of a file.
using NumberRecord = std::array<uint64_t, 2>;

uint64_t RecordSum(uint64_t number) {
  return Hash64(std::as_bytes(std::span(&number, 1)), 0x766965770a);
}

std::string FirstLine(const char* path) {
  std::string line;
  std::getline(std::ifstream(path), line);
  return line;
}

Status Errno(std::string_view what, const std::string& path) {
  return Error(StatusCode::kUnavailable, "{} {}: {}", what, path, fabric::ErrnoText(errno));
}

}  // namespace

// The id of the hardware, which a clone of a virtual machine has of its own, is for root to read.
std::string MachineId() {
  return FirstLine("/etc/machine-id") + "/" + FirstLine("/sys/class/dmi/id/product_uuid");
}

Result<DataDir> DataDir::Open(const std::string& path, const std::string& machine) {
  if (const Status made = MakeDurableFolders(path); !made.ok()) return Prefixed(made, "data_dir");
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
  const std::optional<uint64_t> number = dir.ReadRecord(kViewFile);
  dir.knows_views_ = number.has_value();
  if (number.has_value())
    dir.highest_view_ = {ViewVersion::FromPacked(*number),
                         dir.ReadRecord(kViewFile, 1).value_or(0)};
  dir.cluster_ = ClusterId(dir.ReadRecord(kClusterFile).value_or(0));
  dir.lineage_ = dir.ReadRecord(kLineageFile).value_or(0);
  EMS_ASSIGN_OR_RETURN(const uint64_t place, dir.PlaceOn(machine));
  EMS_RETURN_IF_ERROR(dir.SettlePlace(place));
  dir.folder_id_ = dir.MakeFolderId(place);
  return dir;
}

Result<uint64_t> DataDir::PlaceOn(const std::string& machine) const {
  struct stat lock {};
  if (::fstat(lock_.get(), &lock) != 0) return Errno("cannot look at the lock of", path_);
  const std::string text = fmt::format("{}/{}/{}", machine, lock.st_dev, lock.st_ino);
  return Hash64(AsBytes(text), 0x706c6163650a);
}

Status DataDir::SettlePlace(uint64_t place) {
  const std::optional<uint64_t> before = ReadRecord(kPlaceFile);
  if (before == place) return OkStatus();
  if (before.has_value() || lineage_ != 0) {
    EMS_LOG(kWarn, "mp_server",
            "data_dir {} {}: what the SSD tier holds is dropped, others may have replaced it",
            path_,
            before.has_value() ? "is a copy, or was moved to another disk or machine"
                               : "does not say where it lay (older software, or a damaged file)");
  }
  // First: a place that is noted vouches for the lineage.
  EMS_RETURN_IF_ERROR(EndLineage());
  const Status written = WriteRecord(kPlaceFile, {place});
  if (!written.ok())
    EMS_LOG(kWarn, "mp_server",
            "data_dir {}: cannot note where it lies, so the next start empties the SSD tier: {}",
            path_, ToString(written));
  return OkStatus();
}

uint64_t DataDir::MakeFolderId(uint64_t place) const {
  uint64_t kept = ReadRecord(kFolderFile).value_or(0);
  if (kept == 0) {
    kept = RandomId();
    if (const Status written = WriteRecord(kFolderFile, {kept}); !written.ok()) {
      EMS_LOG(kWarn, "mp_server",
              "data_dir {}: cannot write the id of the folder, so a copy of it cannot be told from "
              "it: {}",
              path_, ToString(written));
      return 0;
    }
  }
  return Hash64(std::as_bytes(std::span(&kept, 1)), place) | 1;
}

std::optional<uint64_t> DataDir::ReadRecord(std::string_view name, size_t at) const {
  const std::string path = fmt::format("{}/{}", path_, name);
  const fabric::Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return std::nullopt;
  NumberRecord record{};
  const ssize_t bytes =
      ::pread(file.get(), &record, sizeof(record), static_cast<off_t>(at * sizeof(record)));
  if (bytes == sizeof(record) && record[1] == RecordSum(record[0])) return record[0];
  if (bytes == 0 && at > 0) return std::nullopt;  // older software wrote one
  EMS_LOG(kWarn, "mp_server", "{} file damaged, starting without it path={}", name, path);
  return std::nullopt;
}

Status DataDir::WriteRecord(std::string_view name, std::initializer_list<uint64_t> numbers) const {
  std::vector<NumberRecord> records;
  for (const uint64_t number : numbers) records.push_back({number, RecordSum(number)});
  const auto bytes = std::as_bytes(std::span(records));
  const std::string path = fmt::format("{}/{}", path_, name);
  const std::string next = path + ".next";
  {
    const fabric::Fd file(::open(next.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    if (!file.valid()) return Errno("cannot write", next);
    if (::write(file.get(), bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size()))
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

Status DataDir::SetHighestView(const ViewIdentity& view) {
  EMS_CHECK(view.version >= highest_view_.version, "view {} after {}", view.version.packed(),
            highest_view_.version.packed());
  EMS_RETURN_IF_ERROR(WriteRecord(kViewFile, {view.version.packed(), view.fingerprint}));
  highest_view_ = view;
  knows_views_ = true;
  return OkStatus();
}

Status DataDir::SetCluster(ClusterId cluster) {
  EMS_CHECK(!AreStrangers(cluster_, cluster), "the folder belongs to cluster {}, not to {}",
            ClusterText(cluster_), ClusterText(cluster));
  EMS_RETURN_IF_ERROR(WriteRecord(kClusterFile, {cluster.value()}));
  cluster_ = cluster;
  return OkStatus();
}

Status DataDir::BeginLineage() {
  const uint64_t lineage = RandomId();
  const Status written = WriteRecord(kLineageFile, {lineage});
  // A disk without room may still forget: then nothing that is stored outlives the next restart.
  if (!written.ok()) return EndLineage();
  lineage_ = lineage;
  knows_views_ = true;  // of this lineage there were none
  return OkStatus();
}

Status DataDir::SetHandOver(uint64_t number) { return WriteRecord(kHandOverFile, {number}); }

uint64_t DataDir::TakeHandOver() {
  const uint64_t number = ReadRecord(kHandOverFile).value_or(0);
  const std::string path = fmt::format("{}/{}", path_, kHandOverFile);
  if (::unlink(path.c_str()) != 0) {
    if (errno != ENOENT) EMS_LOG(kWarn, "mp_server", "{}", Message(Errno("cannot remove", path)));
    return 0;
  }
  return SyncFolder().ok() ? number : 0;
}

Status DataDir::EndLineage() {
  lineage_ = 0;
  const std::string path = fmt::format("{}/{}", path_, kLineageFile);
  if (::unlink(path.c_str()) != 0)
    return errno == ENOENT ? OkStatus() : Errno("cannot remove", path);
  return SyncFolder();
}

}  // namespace ems::server
