#include "ems_model/file_target.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

namespace ems::model {
namespace {

StatusCode CodeOf(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
    case ENOMEM:
    case EMFILE:
    case ENFILE:
    case EFBIG:
      return StatusCode::kResourceExhausted;
    case EACCES:
    case EPERM:
    case EROFS:
      return StatusCode::kPermissionDenied;
    default:
      return StatusCode::kInternal;
  }
}

Status Failed(std::string_view what, std::string_view path, int error) {
  return Error(CodeOf(error), "cannot {} {}: {}", what, path,
               std::generic_category().message(error));
}

// Whether `path` leads to the open file.
bool IsAt(int fd, const std::string& path) {
  struct stat open {};
  struct stat named {};
  return ::fstat(fd, &open) == 0 && ::lstat(path.c_str(), &named) == 0 &&
         open.st_ino == named.st_ino && open.st_dev == named.st_dev;
}

Status SyncFolder(const std::string& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return Failed("open", folder, errno);
  const int error = ::fsync(fd) == 0 ? 0 : errno;
  (void)::close(fd);
  return error == 0 ? OkStatus() : Failed("sync", folder, error);
}

}  // namespace

struct FileTarget::File {
  explicit File(bool wanted_in) : wanted(wanted_in) {}
  ~File() {
    if (!bytes.empty()) (void)::munmap(bytes.data(), bytes.size());
    if (fd < 0) return;
    (void)::unlink(part.c_str());  // ours: the lock is held
    (void)::close(fd);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  const bool wanted;
  std::string path, part;
  uint64_t size = 0;
  int fd = -1;
  MutableBytes bytes;
  std::atomic<uint64_t> left{0};
};

FileTarget::FileTarget(Options options) : options_(std::move(options)) {}

FileTarget::~FileTarget() = default;

Status FileTarget::Begin(std::span<const LoadFile> files) {
  files_.clear();
  if (options_.folder.empty())
    return Error(StatusCode::kInvalidArgument, "no folder is named to load into");
  // A version may have a file that is called as another one's part, say one of a download that has
  // broken off: each name is used once. All files count, so that loads of some agree on the names.
  std::set<std::string, std::less<>> names;
  for (const LoadFile& file : files) names.emplace(file.path);
  for (const LoadFile& wanted : files) {
    std::string part = fmt::format("{}.part", wanted.path);
    while (!names.insert(part).second) part += ".part";
    const bool chosen = !options_.choose || options_.choose(wanted.path);
    File& file = *files_.emplace_back(std::make_unique<File>(chosen));
    if (!chosen) continue;
    file.path = fmt::format("{}/{}", options_.folder, wanted.path);
    file.part = fmt::format("{}/{}", options_.folder, part);
    file.size = wanted.bytes;
    file.left = wanted.bytes;
    if (Status opened = Open(&file); !opened.ok()) {
      files_.clear();
      return opened;
    }
  }
  return OkStatus();
}

Status FileTarget::Open(File* file) {
  std::error_code made;
  std::filesystem::create_directories(std::filesystem::path(file->path).parent_path(), made);
  if (made) return Failed("make the folder of", file->path, made.value());
  const int fd = ::open(file->part.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
  if (fd < 0) return Failed("make", file->part, errno);
  // Between the open and the lock another load may have given the file its name: then it is not
  // ours to write.
  if (::flock(fd, LOCK_EX | LOCK_NB) != 0 || !IsAt(fd, file->part)) {
    (void)::close(fd);
    return Error(StatusCode::kUnavailable, "{} is being written by another load", file->part);
  }
  file->fd = fd;
  if (::ftruncate(fd, 0) != 0) return Failed("empty", file->part, errno);
  if (file->size == 0) return OkStatus();
  const auto size = static_cast<off_t>(file->size);
  if (const int error = ::posix_fallocate(fd, 0, size); error != 0)
    return Failed(fmt::format("take {} for", FormatBytes(file->size)), file->part, error);
  void* const memory = ::mmap(nullptr, file->size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) return Failed("map", file->part, errno);
  file->bytes = MutableBytes(static_cast<std::byte*>(memory), file->size);
  return OkStatus();
}

uint64_t FileTarget::Wants(uint32_t file, uint64_t, uint64_t bytes) {
  return files_[file]->wanted ? bytes : 0;
}

Status FileTarget::Place(uint32_t file, uint64_t offset, uint64_t bytes,
                         std::vector<LoadRange>* ranges) {
  ranges->push_back({.offset = offset, .into = files_[file]->bytes.subspan(offset, bytes)});
  return OkStatus();
}

Status FileTarget::Arrived(uint32_t file, uint64_t, uint64_t bytes) {
  // Partner: the same on other threads; the last one sees all of their writes.
  if (files_[file]->left.fetch_sub(bytes, std::memory_order_acq_rel) != bytes) return OkStatus();
  return Finish(files_[file].get());
}

Status FileTarget::Finish(File* file) {
  if (!file->bytes.empty() && ::munmap(std::exchange(file->bytes, {}).data(), file->size) != 0)
    return Failed("unmap", file->part, errno);
  if (options_.sync && ::fsync(file->fd) != 0) return Failed("sync", file->part, errno);
  if (::rename(file->part.c_str(), file->path.c_str()) != 0)
    return Failed("rename", file->part, errno);
  (void)::close(std::exchange(file->fd, -1));
  return OkStatus();
}

Status FileTarget::End(const Status& load) {
  Status ended;
  std::set<std::string> folders;
  for (const auto& file : files_) {
    if (!file->wanted || !load.ok() || !ended.ok()) continue;
    if (file->size == 0) ended.Update(Finish(file.get()));
    folders.insert(std::filesystem::path(file->path).parent_path().string());
  }
  files_.clear();  // what is not whole goes
  for (const std::string& folder : folders) {
    if (ended.ok() && options_.sync) ended = SyncFolder(folder);
  }
  return ended;
}

}  // namespace ems::model
