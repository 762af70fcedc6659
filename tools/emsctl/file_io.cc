#include "tools/emsctl/file_io.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "common/bytes.h"

namespace ems::emsctl {
namespace {

constexpr size_t kStepBytes = kMiB;

Status SystemError(std::string_view what, const std::string& path, int error) {
  const StatusCode code = error == ENOENT ? StatusCode::kNotFound : StatusCode::kInternal;
  return Error(code, "{} {}: {}", what, path, std::generic_category().message(error));
}

Status TooLarge(const std::string& path, uint64_t bytes_max) {
  return Error(StatusCode::kOutOfRange, "{} is larger than {}, the most one value can hold", path,
               FormatBytes(bytes_max));
}

// Closes on destruction.
class File final {
 public:
  explicit File(int fd) : fd_(fd) {}
  ~File() {
    if (fd_ > STDERR_FILENO) close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int fd() const { return fd_; }
  bool Close() {
    const int fd = fd_;
    fd_ = -1;
    return close(fd) == 0;
  }

 private:
  int fd_;
};

Result<std::string> ReadAll(int fd, const std::string& path, uint64_t bytes_max,
                            const OnBytes& on_bytes) {
  std::string value;
  while (true) {
    const size_t filled = value.size();
    value.resize(filled + kStepBytes);
    const ssize_t got = read(fd, value.data() + filled, kStepBytes);
    const int error = errno;
    value.resize(filled + static_cast<size_t>(std::max<ssize_t>(0, got)));
    if (got < 0 && error == EINTR) continue;
    if (got < 0) return SystemError("cannot read", path, error);
    if (got == 0) return value;
    if (value.size() > bytes_max) return TooLarge(path, bytes_max);
    if (on_bytes) on_bytes(value.size());
  }
}

Status WriteAll(int fd, const std::string& path, std::string_view value, const OnBytes& on_bytes) {
  size_t done = 0;
  while (done < value.size()) {
    const ssize_t put = write(fd, value.data() + done, std::min(kStepBytes, value.size() - done));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return SystemError("cannot write", path, errno);
    done += static_cast<size_t>(put);
    if (on_bytes) on_bytes(done);
  }
  return OkStatus();
}

}  // namespace

Result<std::string> ReadValue(const std::string& path, uint64_t bytes_max,
                              const OnBytes& on_bytes) {
  if (path == "-") return ReadAll(STDIN_FILENO, "standard input", bytes_max, on_bytes);
  const File file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.fd() < 0) return SystemError("cannot open", path, errno);
  struct stat about {};
  if (fstat(file.fd(), &about) != 0) return SystemError("cannot stat", path, errno);
  if (S_ISDIR(about.st_mode)) {
    return Error(StatusCode::kInvalidArgument,
                 "{} is a folder; give a file, or - for standard input", path);
  }
  if (S_ISREG(about.st_mode) && static_cast<uint64_t>(about.st_size) > bytes_max) {
    return TooLarge(path, bytes_max);
  }
  return ReadAll(file.fd(), path, bytes_max, on_bytes);
}

Status WriteValue(const std::string& path, std::string_view value, const OnBytes& on_bytes) {
  const std::string temporary = fmt::format("{}.emsctl-{}.tmp", path, getpid());
  File file(open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (file.fd() < 0) return SystemError("cannot create", temporary, errno);
  Status status = WriteAll(file.fd(), temporary, value, on_bytes);
  if (status.ok() && !file.Close()) status = SystemError("cannot write", temporary, errno);
  if (status.ok() && rename(temporary.c_str(), path.c_str()) != 0) {
    status = SystemError("cannot rename to", path, errno);
  }
  if (!status.ok()) unlink(temporary.c_str());
  return status;
}

}  // namespace ems::emsctl
