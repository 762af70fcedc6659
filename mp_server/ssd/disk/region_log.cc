#include "mp_server/ssd/disk/region_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "common/check.h"
#include "common/durable_folder.h"
#include "common/logging.h"
#include "common/parse_number.h"
#include "mp_server/ssd/disk/folder.h"

namespace ems::ssd {
namespace {

constexpr std::string_view kSuffix = ".region";

Status Errno(std::string_view what, const std::string& path, int error) {
  const bool full = error == ENOSPC || error == EDQUOT;
  return Error(full ? StatusCode::kResourceExhausted : StatusCode::kUnavailable, "{} {}: {}", what,
               path, fabric::ErrnoText(error));
}

std::optional<uint32_t> IdOf(std::string_view name) {
  if (!name.ends_with(kSuffix)) return std::nullopt;
  return ParseNumber<uint32_t>(name.substr(0, name.size() - kSuffix.size()));
}

}  // namespace

Result<fabric::Fd> RegionFiles::Open(const std::string& path, bool create, bool* direct) {
  const int flags = O_RDWR | O_CLOEXEC | (create ? O_CREAT : 0);
  *direct = true;
  fabric::Fd fd(::open(path.c_str(), flags | O_DIRECT, 0600));
  if (!fd.valid() && errno == EINVAL) {
    *direct = false;
    fd = fabric::Fd(::open(path.c_str(), flags, 0600));
  }
  if (!fd.valid()) return Errno("cannot open", path, errno);
  return fd;
}

Status RegionFiles::Preallocate(int fd, uint64_t bytes) {
  while (::fallocate(fd, 0, 0, static_cast<off_t>(bytes)) != 0) {
    if (errno == EINTR) continue;
    return Errno("cannot allocate", FormatBytes(bytes) + " of a region", errno);
  }
  return OkStatus();
}

uint64_t RegionFiles::FreeBytes(const std::string& folder) {
  struct statvfs info {};
  if (::statvfs(folder.c_str(), &info) != 0) return UINT64_MAX;
  return uint64_t{info.f_bavail} * info.f_frsize;
}

Status RegionFiles::Sync(int fd) {
  if (::fdatasync(fd) == 0) return OkStatus();
  return Errno("cannot sync", "a region", errno);
}

Status RegionFiles::Read(int fd, MutableBytes into, uint64_t offset) {
  const ssize_t n = ::pread(fd, into.data(), into.size(), static_cast<off_t>(offset));
  if (n == static_cast<ssize_t>(into.size())) return OkStatus();
  return Errno("cannot read", "a region", n < 0 ? errno : EIO);
}

Status RegionFiles::Write(int fd, ConstBytes bytes, uint64_t offset) {
  const ssize_t n = ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
  if (n == static_cast<ssize_t>(bytes.size())) return OkStatus();
  return Errno("cannot write", "a region", n < 0 ? errno : EIO);
}

Result<std::unique_ptr<RegionLog>> RegionLog::Open(const Options& options) {
  EMS_CHECK(options.region_bytes % kBlockBytes == 0 && options.region_bytes >= 2 * kBlockBytes,
            "regions of {} bytes", options.region_bytes);
  std::unique_ptr<RegionLog> log(new RegionLog(options));
  EMS_RETURN_IF_ERROR(log->Load());
  return log;
}

std::string RegionLog::PathOf(uint32_t id) const {
  return fmt::format("{}/{:08}{}", options_.folder, id, kSuffix);
}

Status RegionLog::Load() {
  EMS_RETURN_IF_ERROR(MakeDurableFolders(options_.folder));
  std::error_code error;
  std::vector<std::pair<uint32_t, std::string>> found;
  EMS_ASSIGN_OR_RETURN(const std::vector<std::filesystem::path> paths, ListFolder(options_.folder));
  for (const std::filesystem::path& path : paths) {
    const auto id = IdOf(path.filename().string());
    if (id && PathOf(*id) == path.string()) found.emplace_back(*id, path.string());
  }
  std::sort(found.begin(), found.end());
  std::vector<std::unique_ptr<Region>> loaded;
  for (const auto& [id, path] : found) {
    auto region = LoadOne(id, path);
    if (region.ok()) {
      if ((*region)->sequence > 0) RaiseSequence((*region)->sequence);
      loaded.push_back(*std::move(region));
      continue;
    }
    if (region.status().code() != StatusCode::kDataLoss) return region.status();
    EMS_LOG(kWarn, "mp_server", "region file dropped: {}", Message(region.status()));
    std::filesystem::remove(path, error);
  }
  // A smaller tier than before: the oldest go, and free ones before them.
  std::sort(loaded.begin(), loaded.end(),
            [](const auto& a, const auto& b) { return a->sequence > b->sequence; });
  while (loaded.size() > options_.regions_max) {
    std::filesystem::remove(PathOf(loaded.back()->id), error);
    loaded.pop_back();
  }
  for (std::unique_ptr<Region>& region : loaded) Add(std::move(region));
  return OkStatus();
}

Result<std::unique_ptr<Region>> RegionLog::LoadOne(uint32_t id, const std::string& path) {
  bool direct = true;
  EMS_ASSIGN_OR_RETURN(fabric::Fd fd, options_.files->Open(path, false, &direct));
  direct_ = direct_ && direct;
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return Errno("cannot stat", path, errno);
  if (static_cast<uint64_t>(info.st_size) != options_.region_bytes)
    return Error(StatusCode::kDataLoss, "{} has {} bytes, regions have {}", path, info.st_size,
                 options_.region_bytes);
  auto region = std::make_unique<Region>();
  region->id = id;
  AlignedBuffer block;
  const MutableBytes bytes = block.Take(kBlockBytes);
  RegionHeader header;
  const Status read = options_.files->Read(fd.get(), bytes, 0);
  const bool good = read.ok() && ReadRegionHeader(bytes, &header) && header.region == id &&
                    header.store_id == options_.store_id;
  region->fd = std::move(fd);
  if (!good) return region;
  region->state = RegionState::kSealed;  // where it was filled to is not known, and need not be
  region->sequence = header.sequence;
  region->ns = {NamespaceId(header.namespace_id), header.namespace_generation};
  region->fill_bytes = options_.region_bytes;
  return region;
}

Region* RegionLog::Add(std::unique_ptr<Region> region) {
  Region* added = regions_.emplace_back(std::move(region)).get();
  by_id_[added->id] = added;
  if (added->state == RegionState::kFree) {
    free_.insert(added->id);
  } else {
    CountIn(added);
  }
  return added;
}

void RegionLog::CountIn(Region* region) { ++in_use_[region->ns]; }

Result<Region*> RegionLog::TakeFree() {
  for (const uint32_t id : free_) {  // few are written to still: writes under way have a bound
    if (Region* region = Find(id); region->writes_under_way == 0) return region;
  }
  if (regions_.size() >= options_.regions_max)
    return Error(StatusCode::kOutOfRange, "all {} regions are in use", options_.regions_max);
  if (options_.files->FreeBytes(options_.folder) <
      options_.region_bytes + options_.keep_free_bytes) {
    return Error(StatusCode::kResourceExhausted,
                 "the disk of {} is full but for what the index needs", options_.folder);
  }
  return Make();
}

Result<Region*> RegionLog::Make() {
  while (Find(next_id_) != nullptr) ++next_id_;
  const std::string path = PathOf(next_id_);
  bool direct = true;
  EMS_ASSIGN_OR_RETURN(fabric::Fd fd, options_.files->Open(path, true, &direct));
  if (const Status given = options_.files->Preallocate(fd.get(), options_.region_bytes);
      !given.ok()) {
    std::error_code ignored;
    std::filesystem::remove(path, ignored);
    return given;
  }
  direct_ = direct_ && direct;
  auto region = std::make_unique<Region>();
  region->id = next_id_;
  region->fd = std::move(fd);
  // Its name must outlive a power failure like what is in it.
  const fabric::Fd folder(::open(options_.folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.valid()) EMS_RETURN_IF_ERROR(options_.files->Sync(folder.get()));
  return Add(std::move(region));
}

Status RegionLog::Begin(Region* region, NamespaceRef ns) {
  EMS_CHECK(region->state == RegionState::kFree, "region {} is in use", region->id);
  RegionHeader header;
  header.store_id = options_.store_id;
  header.sequence = next_sequence_++;
  header.region = region->id;
  header.namespace_id = ns.id.value();
  header.namespace_generation = ns.generation;
  AlignedBuffer block;
  const MutableBytes bytes = block.Take(kBlockBytes);
  WriteRegionHeader(header, bytes);
  region->sequence = header.sequence;
  region->lost_writes = region->looked_ahead = false;
  region->moved_objects = region->moved_bytes = 0;
  region->ns = ns;
  region->members.clear();
  region->unsynced_members.clear();
  const Status written = options_.files->Write(region->fd.get(), bytes, 0);
  region->state = written.ok() ? RegionState::kOpen : RegionState::kBad;
  region->fill_bytes = kBlockBytes;
  free_.erase(region->id);
  CountIn(region);
  return written;
}

void RegionLog::Release(Region* region) {
  EMS_CHECK(region->state != RegionState::kFree, "region {} is free", region->id);
  const auto count = in_use_.find(region->ns);
  EMS_CHECK(count != in_use_.end(), "region {} of namespace {} is not counted", region->id,
            region->ns.id.value());
  if (--count->second == 0) in_use_.erase(count);
  free_.insert(region->id);
  region->state = RegionState::kFree;
  region->members.clear();
  region->unsynced_members.clear();
  region->ns = NamespaceRef();
}

Region* RegionLog::Find(uint32_t id) {
  ++looked_at_;
  const auto it = by_id_.find(id);
  return it == by_id_.end() ? nullptr : it->second;
}

}  // namespace ems::ssd
