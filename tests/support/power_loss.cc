// Preloaded into a daemon: records what it changes below the folder of EMS_POWER_LOSS so that
// power_cut.cc can take back what was not synced (power_log.h).
//
// A sync counts for the file or the folder that it is given and for nothing else, as POSIX has it;
// most file systems keep more. Writes of O_SYNC files count as not synced, and so does
// sync_file_range. io_uring is refused, so that an engine that has threads takes those. Whatever
// else would change a file unseen (shared mappings, stdio, copies in the kernel) ends the process.
//
// Bound: one operation at a time; the old bytes of all writes lie on the disk until the power cut.
#include <dlfcn.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <linux/falloc.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "tests/support/power_log.h"

namespace {

using ems::testing::PowerOp;
using ems::testing::PowerRecord;

pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;

// A record and its operation, with no other between them.
class Turn final {
 public:
  Turn() { pthread_mutex_lock(&one_at_a_time); }
  ~Turn() { pthread_mutex_unlock(&one_at_a_time); }
};

[[noreturn]] void Refuse(const char* what) {
  std::fprintf(stderr, "power_loss: %s would change a file unseen\n", what);
  std::abort();
}

// Nobody changes the environment of a daemon.
const char* Root() {
  return std::getenv(ems::testing::kPowerLossVariable);  // NOLINT(concurrency-mt-unsafe)
}

bool Below(std::string_view path) {
  const char* const root = Root();
  if (root == nullptr || !path.starts_with(root)) return false;
  path.remove_prefix(std::strlen(root));
  return path.empty() || path.front() == '/';
}

// The real calls, so that none of them comes back here.
int RealOpen(int dir, const char* path, int flags, mode_t mode) {
  return static_cast<int>(syscall(SYS_openat, dir, path, flags, mode));
}
int RealClose(int fd) { return static_cast<int>(syscall(SYS_close, fd)); }
ssize_t RealWrite(int fd, const iovec* parts, int count, off_t at) {
  return at < 0 ? syscall(SYS_writev, fd, parts, count)
                : syscall(SYS_pwritev, fd, parts, count, at, 0);
}
int RealLink(const std::string& from, const std::string& to) {
  return static_cast<int>(syscall(SYS_linkat, AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), 0));
}

std::string LinkOf(int fd) {
  char link[64];
  std::snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
  char path[PATH_MAX];
  const ssize_t length = ::readlink(link, path, sizeof(path));
  return {path, static_cast<size_t>(std::max<ssize_t>(length, 0))};
}

// A file or folder that is recorded, which sockets, pipes and the process's log are not.
bool Watched(int fd, struct stat* file) {
  return Root() != nullptr && ::fstat(fd, file) == 0 &&
         (S_ISREG(file->st_mode) || S_ISDIR(file->st_mode)) && Below(LinkOf(fd));
}

// What a path names, if it is recorded: something in the folder or further below.
class Place final {
 public:
  Place(int dir, const char* text) {
    if (Root() == nullptr) return;
    path_ = dir == AT_FDCWD || text[0] == '/' ? text : LinkOf(dir) + "/" + text;
    while (path_.ends_with('/')) path_.pop_back();
    const size_t slash = path_.rfind('/');
    if (slash == std::string::npos || !Below(std::string_view(path_).substr(0, slash))) return;
    name_ = path_.substr(slash + 1);
    struct stat above {};
    if (::stat(path_.substr(0, slash).c_str(), &above) == 0) folder_ = above.st_ino;
  }
  explicit operator bool() const { return folder_ != 0; }
  bool Stat(struct stat* file) const { return ::lstat(path_.c_str(), file) == 0; }
  const std::string& path() const { return path_; }
  const std::string& name() const { return name_; }
  uint64_t folder() const { return folder_; }  // inode

 private:
  std::string path_, name_;
  uint64_t folder_ = 0;
};

std::string UndoFolder() { return std::string(Root()) + ems::testing::kUndoSuffix; }

int OpenLog() {
  const std::string folder = UndoFolder();
  (void)syscall(SYS_mkdirat, AT_FDCWD, folder.c_str(), 0700);
  const std::string path = folder + ems::testing::kUndoLog;
  const int log = RealOpen(AT_FDCWD, path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (log < 0) Refuse("without a log, it");
  return log;
}

uint64_t LogBytes() {
  const int log = OpenLog();
  struct stat file {};
  if (::fstat(log, &file) != 0) Refuse("without a log, it");
  RealClose(log);
  return static_cast<uint64_t>(file.st_size);
}

void Append(PowerRecord record, std::string_view from, std::string_view to, std::string_view saved,
            std::string_view old) {
  record.from_bytes = static_cast<uint32_t>(from.size());
  record.to_bytes = static_cast<uint32_t>(to.size());
  record.saved_bytes = static_cast<uint32_t>(saved.size());
  record.old_bytes = old.size();
  std::string bytes(reinterpret_cast<const char*>(&record), sizeof(record));
  bytes.append(from).append(to).append(saved).append(old);
  const iovec whole{bytes.data(), bytes.size()};
  const int log = OpenLog();
  if (RealWrite(log, &whole, 1, -1) != static_cast<ssize_t>(bytes.size()))
    Refuse("with a full disk, it");
  RealClose(log);
}

// Bytes [from, to) as they are now; its own descriptor, because `fd` may be for writing or direct.
std::string Contents(int fd, uint64_t from, uint64_t to) {
  std::string bytes(from < to ? to - from : 0, '\0');
  if (bytes.empty()) return bytes;
  char link[64];
  std::snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
  const int file = RealOpen(AT_FDCWD, link, O_RDONLY | O_CLOEXEC, 0);
  const ssize_t n = ::pread(file, bytes.data(), bytes.size(), static_cast<off_t>(from));
  if (n != static_cast<ssize_t>(bytes.size())) Refuse("without the old bytes, it");
  RealClose(file);
  return bytes;
}

ssize_t Write(int fd, const iovec* parts, int count, off_t at) {
  struct stat file {};
  if (!Watched(fd, &file)) return RealWrite(fd, parts, count, at);
  const Turn turn;
  (void)::fstat(fd, &file);
  PowerRecord record{.op = PowerOp::kWrite};
  record.inode = file.st_ino;
  record.size_before = static_cast<uint64_t>(file.st_size);
  const bool appends = (::fcntl(fd, F_GETFL) & O_APPEND) != 0;
  record.offset = appends   ? record.size_before
                  : at >= 0 ? static_cast<uint64_t>(at)
                            : static_cast<uint64_t>(::lseek(fd, 0, SEEK_CUR));
  for (int i = 0; i < count; ++i) record.length += parts[i].iov_len;
  const uint64_t old_end = std::min(record.offset + record.length, record.size_before);
  Append(record, "", "", "", Contents(fd, record.offset, old_end));
  return RealWrite(fd, parts, count, at);
}

void RecordResize(int fd, const struct stat& file, uint64_t bytes) {
  PowerRecord record{.op = PowerOp::kResize};
  record.inode = file.st_ino;
  record.length = bytes;
  record.size_before = static_cast<uint64_t>(file.st_size);
  Append(record, "", "", "", Contents(fd, bytes, record.size_before));
}

int Resize(int fd, off_t bytes) {
  struct stat file {};
  if (!Watched(fd, &file)) return static_cast<int>(syscall(SYS_ftruncate, fd, bytes));
  const Turn turn;
  (void)::fstat(fd, &file);
  RecordResize(fd, file, static_cast<uint64_t>(bytes));
  return static_cast<int>(syscall(SYS_ftruncate, fd, bytes));
}

int Allocate(int fd, int mode, off_t offset, off_t bytes) {
  struct stat file {};
  if (!Watched(fd, &file)) return static_cast<int>(syscall(SYS_fallocate, fd, mode, offset, bytes));
  if ((mode & ~FALLOC_FL_KEEP_SIZE) != 0) Refuse("fallocate of this mode");
  const Turn turn;
  if (mode == 0 && ::fstat(fd, &file) == 0 && offset + bytes > file.st_size)
    RecordResize(fd, file, static_cast<uint64_t>(offset + bytes));
  return static_cast<int>(syscall(SYS_fallocate, fd, mode, offset, bytes));
}

void RecordMade(const Place& place) {
  PowerRecord record{.op = PowerOp::kMake};
  record.folder = place.folder();
  Append(record, place.name(), "", "", "");
}

int Open(int dir, const char* path, int flags, mode_t mode) {
  if ((flags & (O_CREAT | O_TRUNC)) == 0) return RealOpen(dir, path, flags, mode);
  const Place place(dir, path);
  if (!place) return RealOpen(dir, path, flags, mode);
  const Turn turn;
  struct stat file {};
  if (!place.Stat(&file)) {
    if ((flags & O_CREAT) != 0) RecordMade(place);
  } else if ((flags & O_TRUNC) != 0 && file.st_size > 0) {
    const int fd = RealOpen(dir, path, O_RDONLY | O_CLOEXEC, 0);
    RecordResize(fd, file, 0);
    RealClose(fd);
  }
  return RealOpen(dir, path, flags, mode);
}

// A second name for what is to lose its own. Empty: there is nothing there, or a folder.
std::string Save(const Place& place) {
  struct stat file {};
  if (!place.Stat(&file) || S_ISDIR(file.st_mode)) return "";
  std::string name = "saved-" + std::to_string(LogBytes());
  if (RealLink(place.path(), UndoFolder() + "/" + name) != 0 && errno != EEXIST)
    Refuse("without a link, it");
  return name;
}

int Remove(int dir, const char* path, int flags) {
  const Place place(dir, path);
  if (!place) return static_cast<int>(syscall(SYS_unlinkat, dir, path, flags));
  const Turn turn;
  struct stat file {};
  if (place.Stat(&file)) {
    PowerRecord record{.op = PowerOp::kRemove};
    record.inode = file.st_ino;
    record.folder = place.folder();
    Append(record, place.name(), "", Save(place), "");
  }
  return static_cast<int>(syscall(SYS_unlinkat, dir, path, flags));
}

int Rename(int dir, const char* from, int dir_to, const char* to, unsigned flags) {
  const Place place(dir, from), place_to(dir_to, to);
  if (!place && !place_to)
    return static_cast<int>(syscall(SYS_renameat2, dir, from, dir_to, to, flags));
  if (!place || !place_to || flags != 0) Refuse("a rename of this kind");
  const Turn turn;
  struct stat file {};
  if (place.Stat(&file)) {
    PowerRecord record{.op = PowerOp::kRename};
    record.inode = file.st_ino;
    record.folder = place.folder();
    record.folder_to = place_to.folder();
    Append(record, place.name(), place_to.name(), Save(place_to), "");
  }
  return static_cast<int>(syscall(SYS_renameat2, dir, from, dir_to, to, flags));
}

int MakeFolder(int dir, const char* path, mode_t mode) {
  const Place place(dir, path);
  if (!place) return static_cast<int>(syscall(SYS_mkdirat, dir, path, mode));
  const Turn turn;
  struct stat file {};
  if (!place.Stat(&file)) RecordMade(place);
  return static_cast<int>(syscall(SYS_mkdirat, dir, path, mode));
}

int Link(int dir, const char* from, int dir_to, const char* to, int flags) {
  const Place place(dir_to, to);
  if (!place) return static_cast<int>(syscall(SYS_linkat, dir, from, dir_to, to, flags));
  const Turn turn;
  struct stat file {};
  if (!place.Stat(&file)) RecordMade(place);
  return static_cast<int>(syscall(SYS_linkat, dir, from, dir_to, to, flags));
}

bool IsLost(int fd) {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): see Root
  const char* const glob = std::getenv(ems::testing::kLostSyncsVariable);
  return glob != nullptr && ::fnmatch(glob, LinkOf(fd).c_str(), 0) == 0;
}

// Covers what has happened before it begins; what others do meanwhile is not synced by it.
int Sync(int fd, long number) {
  struct stat file {};
  if (!Watched(fd, &file)) return static_cast<int>(syscall(number, fd));
  PowerRecord record{.op = PowerOp::kSync};
  record.inode = file.st_ino;
  {
    const Turn turn;
    record.offset = LogBytes();
  }
  const int result = static_cast<int>(syscall(number, fd));
  if (result != 0 || IsLost(fd)) return result;
  const Turn turn;
  Append(record, "", "", "", "");
  return result;
}

mode_t ModeOf(int flags, va_list words) {
  return (flags & O_CREAT) != 0 ? va_arg(words, mode_t) : 0;
}

}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
  va_list words;
  va_start(words, flags);
  const mode_t mode = ModeOf(flags, words);
  va_end(words);
  return Open(AT_FDCWD, path, flags, mode);
}
int openat(int dir, const char* path, int flags, ...) {
  va_list words;
  va_start(words, flags);
  const mode_t mode = ModeOf(flags, words);
  va_end(words);
  return Open(dir, path, flags, mode);
}
int creat(const char* path, mode_t mode) {
  return Open(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode);
}
int open64(const char* path, int flags, ...) __attribute__((alias("open")));
int openat64(int dir, const char* path, int flags, ...) __attribute__((alias("openat")));
int creat64(const char* path, mode_t mode) __attribute__((alias("creat")));

ssize_t write(int fd, const void* bytes, size_t count) {
  const iovec part{const_cast<void*>(bytes), count};
  return Write(fd, &part, 1, -1);
}
ssize_t pwrite(int fd, const void* bytes, size_t count, off_t at) {
  const iovec part{const_cast<void*>(bytes), count};
  return Write(fd, &part, 1, at);
}
ssize_t writev(int fd, const iovec* parts, int count) { return Write(fd, parts, count, -1); }
ssize_t pwritev(int fd, const iovec* parts, int count, off_t at) {
  return Write(fd, parts, count, at);
}
ssize_t pwrite64(int fd, const void* bytes, size_t count, off64_t at)
    __attribute__((alias("pwrite")));
ssize_t pwritev64(int fd, const iovec* parts, int count, off64_t at)
    __attribute__((alias("pwritev")));

int ftruncate(int fd, off_t bytes) noexcept { return Resize(fd, bytes); }
int truncate(const char* path, off_t bytes) noexcept {
  const int fd = RealOpen(AT_FDCWD, path, O_WRONLY | O_CLOEXEC, 0);
  if (fd < 0) return -1;
  const int result = Resize(fd, bytes);
  const int error = errno;
  RealClose(fd);
  errno = error;
  return result;
}
int fallocate(int fd, int mode, off_t offset, off_t bytes) {
  return Allocate(fd, mode, offset, bytes);
}
int posix_fallocate(int fd, off_t offset, off_t bytes) {
  return Allocate(fd, 0, offset, bytes) == 0 ? 0 : errno;
}
int ftruncate64(int fd, off64_t bytes) noexcept __attribute__((alias("ftruncate")));
int truncate64(const char* path, off64_t bytes) noexcept __attribute__((alias("truncate")));
int fallocate64(int fd, int mode, off64_t offset, off64_t bytes)
    __attribute__((alias("fallocate")));
int posix_fallocate64(int fd, off64_t offset, off64_t bytes)
    __attribute__((alias("posix_fallocate")));

int unlink(const char* path) noexcept { return Remove(AT_FDCWD, path, 0); }
int unlinkat(int dir, const char* path, int flags) noexcept { return Remove(dir, path, flags); }
int rmdir(const char* path) noexcept { return Remove(AT_FDCWD, path, AT_REMOVEDIR); }
int remove(const char* path) noexcept {
  struct stat file {};
  const bool folder = ::lstat(path, &file) == 0 && S_ISDIR(file.st_mode);
  return Remove(AT_FDCWD, path, folder ? AT_REMOVEDIR : 0);
}
int rename(const char* from, const char* to) noexcept {
  return Rename(AT_FDCWD, from, AT_FDCWD, to, 0);
}
int renameat(int dir, const char* from, int dir_to, const char* to) noexcept {
  return Rename(dir, from, dir_to, to, 0);
}
int renameat2(int dir, const char* from, int dir_to, const char* to, unsigned flags) noexcept {
  return Rename(dir, from, dir_to, to, flags);
}
int mkdir(const char* path, mode_t mode) noexcept { return MakeFolder(AT_FDCWD, path, mode); }
int mkdirat(int dir, const char* path, mode_t mode) noexcept { return MakeFolder(dir, path, mode); }
int link(const char* from, const char* to) noexcept {
  return Link(AT_FDCWD, from, AT_FDCWD, to, 0);
}
int linkat(int dir, const char* from, int dir_to, const char* to, int flags) noexcept {
  return Link(dir, from, dir_to, to, flags);
}

int fsync(int fd) { return Sync(fd, SYS_fsync); }
int fdatasync(int fd) { return Sync(fd, SYS_fdatasync); }

void* mmap(void* at, size_t bytes, int protection, int flags, int fd, off_t offset) noexcept {
  struct stat file {};
  if ((flags & MAP_SHARED) != 0 && (protection & PROT_WRITE) != 0 && fd >= 0 && Watched(fd, &file))
    Refuse("a shared mapping");
  const long mapped = syscall(SYS_mmap, at, bytes, protection, flags, fd, offset);
  return reinterpret_cast<void*>(mapped);  // NOLINT(performance-no-int-to-ptr)
}
void* mmap64(void* at, size_t bytes, int protection, int flags, int fd, off64_t offset) noexcept
    __attribute__((alias("mmap")));
ssize_t sendfile(int to, int from, off_t* offset, size_t count) noexcept {
  struct stat file {};
  if (Watched(to, &file)) Refuse("sendfile");
  return syscall(SYS_sendfile, to, from, offset, count);
}
ssize_t sendfile64(int to, int from, off64_t* offset, size_t count) noexcept
    __attribute__((alias("sendfile")));
ssize_t copy_file_range(int from, off64_t* from_at, int to, off64_t* to_at, size_t count,
                        unsigned flags) {
  struct stat file {};
  if (Watched(to, &file)) Refuse("copy_file_range");
  return syscall(SYS_copy_file_range, from, from_at, to, to_at, count, flags);
}

FILE* fopen(const char* path, const char* mode) {
  if (std::strpbrk(mode, "wa+") != nullptr && Place(AT_FDCWD, path)) Refuse("stdio");
  return reinterpret_cast<FILE* (*)(const char*, const char*)>(dlsym(RTLD_NEXT, "fopen"))(path,
                                                                                          mode);
}
FILE* fopen64(const char* path, const char* mode) __attribute__((alias("fopen")));

int io_uring_queue_init(unsigned entries, void* ring, unsigned flags);
int io_uring_queue_init(unsigned entries, void* ring, unsigned flags) {
  if (Root() != nullptr) return -ENOSYS;
  using Real = int (*)(unsigned, void*, unsigned);
  return reinterpret_cast<Real>(dlsym(RTLD_NEXT, "io_uring_queue_init"))(entries, ring, flags);
}
}
