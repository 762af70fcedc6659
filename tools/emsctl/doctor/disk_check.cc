#include "tools/emsctl/doctor/disk_check.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <utility>

#include "common/bytes.h"
#include "common/machine_check.h"
#include "fabric/net/socket.h"

namespace ems::emsctl {
namespace {

namespace fs = std::filesystem;

constexpr size_t kBlockBytes = 4096;
constexpr size_t kFilesCountedMax = 100'000;
constexpr uint64_t kRoomLeast = 64 * kMiB;  // for views, logs of the index and the like

struct FileSystem {
  uint64_t magic;
  std::string_view name;
  std::string_view warning;  // empty: as good as any
};
constexpr std::string_view kRemote = "a disk of this machine; locks and syncs of others differ";
constexpr std::array<FileSystem, 12> kFileSystems = {{
    {0xef53, "ext4", ""},
    {0x58465342, "xfs", ""},
    {0x9123683e, "btrfs", ""},
    {0xf2f52010, "f2fs", ""},
    {0x2fc12fc1, "zfs", ""},
    {0x01021994, "tmpfs", "a disk: this is memory, and empty after a boot"},
    {0x794c7630, "overlayfs", "a volume: this is the container's own layer, and goes with it"},
    {0x6969, "nfs", kRemote},
    {0xff534d42, "cifs", kRemote},
    {0x00c36400, "ceph", kRemote},
    {0x01021997, "9p", kRemote},
    {0x65735546, "fuse", kRemote},
}};

fs::path Nearest(const std::string& folder) {
  std::error_code error;
  fs::path path = fs::absolute(folder, error).lexically_normal();
  while (!fs::exists(path, error) && path.has_relative_path()) path = path.parent_path();
  return path;
}

// What the files of a folder take of the disk; those below it, too.
uint64_t TakenBytes(const std::string& folder) {
  uint64_t bytes = 0;
  size_t count = 0;
  std::error_code error;
  for (fs::recursive_directory_iterator at(folder, error), end;
       at != end && !error && ++count < kFilesCountedMax; at.increment(error)) {
    struct stat about {};
    if (::lstat(at->path().c_str(), &about) == 0)
      bytes += static_cast<uint64_t>(about.st_blocks) * 512;
  }
  return bytes;
}

// A new file without a name. Not every file system has such; then one whose name goes at once.
fabric::Fd TemporaryFile(const fs::path& folder) {
  constexpr int kFlags = O_RDWR | O_DIRECT | O_CLOEXEC;
  fabric::Fd file(::open(folder.c_str(), O_TMPFILE | kFlags, 0600));
  if (file.valid() || (errno != EOPNOTSUPP && errno != EISDIR && errno != ENOENT)) return file;
  std::string path = (folder / ".ems-doctor-XXXXXX").string();
  file = fabric::Fd(::mkostemp(path.data(), O_DIRECT | O_CLOEXEC));
  const int error = errno;
  if (file.valid()) ::unlink(path.c_str());
  errno = error;
  return file;
}

// 0, or the errno with which a write past the page cache fails.
int TryDirectIo(const fs::path& folder) {
  const fabric::Fd file = TemporaryFile(folder);
  if (!file.valid()) return errno;
  alignas(kBlockBytes) static constexpr std::array<std::byte, kBlockBytes> kBlock{};
  return ::pwrite(file.get(), kBlock.data(), kBlock.size(), 0) ==
                 static_cast<ssize_t>(kBlock.size())
             ? 0
             : errno;
}

void Worsen(Finding* finding, Level level, std::string mend) {
  if (level < finding->level) return;
  if (level > finding->level || finding->mend.empty()) finding->mend = std::move(mend);
  finding->level = level;
}

void CheckRoom(const DiskNeeds& needs, const struct statfs& disk, Finding* finding) {
  const auto block = static_cast<uint64_t>(disk.f_bsize);
  const uint64_t all = uint64_t{disk.f_blocks} * block, free = uint64_t{disk.f_bavail} * block;
  finding->found += fmt::format(", {} free of {}", FormatBytes(free), FormatBytes(all));
  if (needs.bytes > 0) finding->found += fmt::format(", {} wanted", FormatBytes(needs.bytes));
  if (needs.bytes > all) {
    Worsen(finding, Level::kFail, "lower ssd.capacity_bytes, or take another disk");
  } else if (needs.bytes > 0 && needs.bytes > free + TakenBytes(needs.folder)) {
    Worsen(finding, Level::kWarn, "make room: others fill the disk before the tier does");
  } else if (free < kRoomLeast) {
    Worsen(finding, Level::kFail, "make room: no view can be kept on a full disk");
  }
}

void CheckDirectIo(const fs::path& folder, Finding* finding) {
  const int error = TryDirectIo(folder);
  finding->found += error == 0 ? ", O_DIRECT works" : ", O_DIRECT: " + fabric::ErrnoText(error);
  if (error == 0) return;
  if (error == EACCES || error == EPERM) {
    Worsen(finding, Level::kWarn, "try it as the server's user: sudo -u ems emsctl doctor");
  } else {
    Worsen(finding, Level::kFail,
           "the SSD tier writes with O_DIRECT: take another file system, as ext4 or xfs");
  }
}

}  // namespace

Finding CheckDisk(const DiskNeeds& needs) {
  Finding finding{.check = "disk of " + needs.key};
  const fs::path nearest = Nearest(needs.folder);
  struct statfs disk {};
  if (::statfs(nearest.c_str(), &disk) != 0) {
    return {.level = Level::kFail,
            .check = finding.check,
            .found = fmt::format("{}: {}", nearest.string(), fabric::ErrnoText(errno)),
            .mend = "is the disk mounted, and may this user look there?"};
  }
  const auto magic = static_cast<uint32_t>(disk.f_type);
  const auto* known = std::find_if(kFileSystems.begin(), kFileSystems.end(),
                                   [&](const FileSystem& one) { return one.magic == magic; });
  const bool is_known = known != kFileSystems.end();
  finding.found = fmt::format("{} on {}", needs.folder,
                              is_known ? std::string(known->name) : fmt::format("{:#x}", magic));
  if (is_known && !known->warning.empty())
    Worsen(&finding, Level::kWarn, fmt::format("take {}", known->warning));
  CheckRoom(needs, disk, &finding);
  const Status writable = CheckFolder(needs.key, needs.folder);
  if (writable.code() == StatusCode::kNotFound) {
    Worsen(&finding, Level::kWarn, std::string(Message(writable)));
  } else if (!writable.ok()) {
    // Who asks need not be the user that the server runs as.
    Worsen(&finding, Level::kWarn, std::string(Message(writable)));
    return finding;
  }
  if (needs.direct_io) CheckDirectIo(nearest, &finding);
  return finding;
}

}  // namespace ems::emsctl
