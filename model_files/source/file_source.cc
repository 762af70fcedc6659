#include "model_files/source/file_source.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "common/thread_pool.h"
#include "model_files/source/source_url.h"

namespace ems::model {
namespace {

constexpr uint64_t kPieceBytes = 4 * kMiB;  // read at once, between looks at the deadline

class OwnedFd final {
 public:
  explicit OwnedFd(int fd) : fd_(fd) {}
  OwnedFd(const OwnedFd&) = delete;
  OwnedFd& operator=(const OwnedFd&) = delete;
  ~OwnedFd() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }
  int Release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

struct CloseFolder {
  void operator()(DIR* folder) const { closedir(folder); }
};

int OpenBeneath(int root, const std::string& path, int flags) {
  open_how how{};
  how.flags = static_cast<uint64_t>(flags | O_CLOEXEC);
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS;
  for (int tries = 0; tries < 16; ++tries) {  // EAGAIN: something was renamed meanwhile
    const long fd = syscall(SYS_openat2, root, path.c_str(), &how, sizeof(how));
    if (fd >= 0 || (errno != EAGAIN && errno != EINTR)) return static_cast<int>(fd);
  }
  return -1;
}

// A FIFO or a device does not hold the open up.
int OpenFile(int root, const std::string& path) {
  return OpenBeneath(root, path, O_RDONLY | O_NONBLOCK | O_NOCTTY);
}

std::string TagOf(const struct stat& status) {
  return fmt::format("{}:{}", status.st_mtim.tv_sec * 1'000'000'000LL + status.st_mtim.tv_nsec,
                     status.st_size);
}

StatusCode CodeOf(int error) {
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return StatusCode::kNotFound;
    case EACCES:
    case EPERM:
      return StatusCode::kPermissionDenied;
    case EXDEV:
    case ELOOP:
    case ENXIO:
      return StatusCode::kInvalidArgument;
    case EIO:
      return StatusCode::kDataLoss;
    case EMFILE:
    case ENFILE:
    case ENOMEM:
      return StatusCode::kResourceExhausted;
    default:
      return StatusCode::kUnavailable;
  }
}

std::string TextOf(int error) {
  if (error == EXDEV) return "it leads out of the source's folder";
  return std::error_code(error, std::generic_category()).message();
}

}  // namespace

Result<std::unique_ptr<WeightSource>> FileSource::Open(const SourceSpec& spec,
                                                       const std::string& folder) {
  const int root = open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (root < 0) {
    const int error = errno;
    const StatusCode code = error == ENOTDIR ? StatusCode::kInvalidArgument : CodeOf(error);
    return Error(code, "{}: {}", Printable(folder, 256), TextOf(error));
  }
  return std::unique_ptr<WeightSource>(
      std::unique_ptr<FileSource>(new FileSource(spec, folder, root)));
}

FileSource::FileSource(const SourceSpec& spec, std::string folder, int root)
    : files_(spec.files),
      folder_(std::move(folder)),
      root_(root),
      stop_(spec.stop),
      cap_(spec.bytes_per_s_max) {}

FileSource::~FileSource() { close(root_); }

Status FileSource::Failed(int error, std::string_view path) const {
  return Error(CodeOf(error), "{}/{}: {}", Printable(folder_, 256), Printable(path, 256),
               TextOf(error));
}

Result<SourceFile> FileSource::Stat(const std::string& path) const {
  EMS_RETURN_IF_ERROR(CheckFilePath(path));
  const OwnedFd fd(OpenBeneath(root_, path, O_PATH));
  struct stat status {};
  if (fd.get() < 0 || fstat(fd.get(), &status) != 0) return Failed(errno, path);
  if (!S_ISREG(status.st_mode)) {
    return Error(StatusCode::kInvalidArgument,
                 "{}/{}: neither a file nor a folder, or a link to a folder",
                 Printable(folder_, 256), Printable(path, 256));
  }
  return SourceFile{
      .path = path, .bytes = static_cast<uint64_t>(status.st_size), .tag = TagOf(status)};
}

Status FileSource::Walk(const std::string& below, int depth, Deadline deadline, Found* found) {
  if (depth > kDepthMax) {
    return Error(StatusCode::kResourceExhausted, "{}/{}: folders nest deeper than {}",
                 Printable(folder_, 256), Printable(below, 256), kDepthMax);
  }
  OwnedFd fd(OpenBeneath(root_, below.empty() ? "." : below, O_RDONLY | O_DIRECTORY));
  if (fd.get() < 0) return Failed(errno, below);
  const std::unique_ptr<DIR, CloseFolder> folder(fdopendir(fd.get()));
  if (!folder) return Failed(errno, below);
  (void)fd.Release();
  std::vector<std::string> folders;
  for (;;) {
    errno = 0;
    const dirent* entry =
        readdir(folder.get());  // NOLINT(concurrency-mt-unsafe): a stream of its own
    if (entry == nullptr && errno != 0) return Failed(errno, below);
    if (entry == nullptr) break;
    const std::string_view name = entry->d_name;
    if (name == "." || name == "..") continue;
    if (deadline.Passed()) return Error(StatusCode::kDeadlineExceeded, "{}: listing", folder_);
    std::string path = below.empty() ? std::string(name) : fmt::format("{}/{}", below, name);
    if (++found->entries > kSourceFilesMax) {
      return Error(StatusCode::kResourceExhausted, "{}: above {} files and folders",
                   Printable(folder_, 256), kSourceFilesMax);
    }
    struct stat status {};
    if (fstatat(dirfd(folder.get()), entry->d_name, &status, AT_SYMLINK_NOFOLLOW) != 0) {
      return Failed(errno, path);
    }
    if (S_ISDIR(status.st_mode)) {
      folders.push_back(std::move(path));
      continue;
    }
    EMS_ASSIGN_OR_RETURN(SourceFile file, Stat(path));
    found->files.push_back(std::move(file));
  }
  for (const std::string& path : folders) {
    EMS_RETURN_IF_ERROR(CheckFilePath(path));
    EMS_RETURN_IF_ERROR(Walk(path, depth + 1, deadline, found));
  }
  return OkStatus();
}

Result<std::vector<SourceFile>> FileSource::List(Deadline deadline) {
  Found found;
  std::vector<SourceFile>& files = found.files;
  if (files_.empty()) {
    EMS_RETURN_IF_ERROR(Walk("", 0, deadline, &found));
  }
  for (const std::string& path : files_) {
    EMS_ASSIGN_OR_RETURN(SourceFile file, Stat(path));
    files.push_back(std::move(file));
  }
  if (files.empty()) {
    return Error(StatusCode::kNotFound, "{}: the folder is empty", Printable(folder_, 256));
  }
  std::sort(files.begin(), files.end(),
            [](const SourceFile& a, const SourceFile& b) { return a.path < b.path; });
  const auto same = [](const SourceFile& a, const SourceFile& b) { return a.path == b.path; };
  files.erase(std::unique(files.begin(), files.end(), same), files.end());
  return std::move(found.files);
}

Status FileSource::ReadPiece(int fd, const SourceFile& file, uint64_t offset, MutableBytes into,
                             Deadline deadline) {
  const Duration wait = cap_.Reserve(into.size());
  if (wait >= deadline.Remaining()) {
    return Error(StatusCode::kDeadlineExceeded, "{}/{} at offset {}", Printable(folder_, 256),
                 Printable(file.path, 256), offset);
  }
  if (wait > Duration::zero()) {
    StopFlag never;
    if ((stop_ != nullptr ? *stop_ : never).WaitFor(wait))
      return Error(StatusCode::kCancelled, "stopping");
  }
  for (size_t done = 0; done < into.size();) {
    const ssize_t got =
        pread(fd, into.data() + done, into.size() - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Failed(errno, file.path);
    if (got == 0) {
      return Error(StatusCode::kFailedPrecondition, "{}/{}: the source changed: it ends at {}",
                   Printable(folder_, 256), Printable(file.path, 256), offset + done);
    }
    done += static_cast<size_t>(got);
    bytes_read_.fetch_add(static_cast<uint64_t>(got), std::memory_order_relaxed);
  }
  return OkStatus();
}

Status FileSource::Read(const SourceFile& file, uint64_t offset, MutableBytes into,
                        Deadline deadline) {
  EMS_RETURN_IF_ERROR(CheckRead(file, offset, into.size()));
  const OwnedFd fd(OpenFile(root_, file.path));
  if (fd.get() < 0) return Failed(errno, file.path);
  const auto check = [&]() -> Status {
    struct stat status {};
    if (fstat(fd.get(), &status) != 0) return Failed(errno, file.path);
    if (!S_ISREG(status.st_mode)) {
      return Error(StatusCode::kInvalidArgument, "{}/{}: not a regular file",
                   Printable(folder_, 256), Printable(file.path, 256));
    }
    if (TagOf(status) == file.tag) return OkStatus();
    return Error(StatusCode::kFailedPrecondition,
                 "{}/{}: the source changed: its tag was {} and is {}", Printable(folder_, 256),
                 Printable(file.path, 256), Printable(file.tag), TagOf(status));
  };
  EMS_RETURN_IF_ERROR(check());
  for (uint64_t done = 0; done < into.size(); done += kPieceBytes) {
    const MutableBytes piece = into.subspan(done, std::min(kPieceBytes, into.size() - done));
    EMS_RETURN_IF_ERROR(ReadPiece(fd.get(), file, offset + done, piece, deadline));
  }
  return check();  // it may have been written to meanwhile
}

}  // namespace ems::model
