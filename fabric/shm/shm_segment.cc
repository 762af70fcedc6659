#include "fabric/shm/shm_segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "common/check.h"
#include "common/thread_pool.h"
#include "fabric/shm/huge_mapping.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MFD_HUGE_2MB
#define MFD_HUGE_2MB (21U << 26)
#endif

namespace ems::fabric {
namespace {

// What must stay free besides the segment, so that filling the pool never calls the OOM killer.
constexpr uint64_t kFreeBytesMin = 256 * kMiB;
constexpr uint64_t kSmallPageBytes = 4 * kKiB;

// MemAvailable, in bytes; nullopt-like 2^63 where /proc does not say.
uint64_t AvailableBytes() {
  std::ifstream meminfo("/proc/meminfo");
  std::string name, unit;
  uint64_t kib = 0;
  while (meminfo >> name >> kib) {
    if (name == "MemAvailable:") return kib * kKiB;
    std::getline(meminfo, unit);
  }
  return uint64_t{1} << 63;
}

Status NoMemory(uint64_t bytes, PageKind kind, int error) {
  if (kind == PageKind::kHugetlb) {
    return Error(StatusCode::kResourceExhausted,
                 "no {} of reserved 2 MiB pages ({}); to reserve more: sysctl -w "
                 "vm.nr_hugepages=<pages in all>",
                 FormatBytes(bytes), ErrnoText(error));
  }
  return Error(StatusCode::kResourceExhausted,
               "no {} of memory ({}; {} available); give the pool less or the machine more",
               FormatBytes(bytes), ErrnoText(error), FormatBytes(AvailableBytes()));
}

bool IsNoMemory(int error) {
  return error == ENOMEM || error == ENOSPC || error == EFAULT || error == EPERM;
}

}  // namespace

std::string_view PageKindName(PageKind kind) {
  constexpr std::array<std::string_view, 3> kNames = {"hugetlb 2 MiB", "transparent 2 MiB",
                                                      "4 KiB"};
  return kNames.at(static_cast<size_t>(kind));
}

Result<ShmSegment> ShmSegment::Create(uint64_t bytes, HugePages huge_pages) {
  return CreateOn({}, bytes, huge_pages);
}

Result<ShmSegment> ShmSegment::CreateOn(const NumaNodes& nodes, uint64_t bytes,
                                        HugePages huge_pages, Writers writers) {
  if (bytes == 0) return Error(StatusCode::kInvalidArgument, "a segment of 0 bytes");
  const uint64_t rounded = RoundUp(bytes, kHugePageBytes);
  if (huge_pages != HugePages::kOff) {
    Result<ShmSegment> huge = CreateWith(nodes, rounded, PageKind::kHugetlb, writers);
    if (huge.ok() || huge_pages == HugePages::kRequire) return huge;
    return CreateWith(nodes, rounded, PageKind::kTransparent, writers);
  }
  return CreateWith(nodes, rounded, PageKind::kSmall, writers);
}

Result<ShmSegment> ShmSegment::Adopt(Fd fd, uint64_t bytes, PageKind kind) {
  struct stat file {};
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  constexpr int kNeeded = F_SEAL_SHRINK | F_SEAL_GROW;
  if (fstat(fd.get(), &file) != 0 || seals < 0 || (seals & kNeeded) != kNeeded || bytes == 0 ||
      bytes % kHugePageBytes != 0 || static_cast<uint64_t>(file.st_size) != bytes)
    return Error(StatusCode::kInvalidArgument, "not a sealed segment of {}", FormatBytes(bytes));
  ShmSegment segment;
  segment.fd_ = fd.Release();
  EMS_RETURN_IF_ERROR(segment.MapFile(bytes, kind));
  return segment;
}

Status ShmSegment::Protect() const {
  if (mprotect(data_, size_, PROT_READ) == 0) return OkStatus();
  return Error(StatusCode::kInternal, "making a segment read-only: {}", ErrnoText(errno));
}

Result<ShmSegment> ShmSegment::CreateSparse(uint64_t bytes) {
  if (bytes == 0) return Error(StatusCode::kInvalidArgument, "a segment of 0 bytes");
  ShmSegment segment;
  segment.fd_ = memfd_create("ems-sparse", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (segment.fd_ < 0) return Error(StatusCode::kInternal, "memfd_create: {}", ErrnoText(errno));
  EMS_RETURN_IF_ERROR(segment.Map(RoundUp(bytes, kHugePageBytes), PageKind::kSmall));
  EMS_RETURN_IF_ERROR(segment.SealSize(false));
  return segment;
}

Result<ShmSegment> ShmSegment::CreateWith(const NumaNodes& nodes, uint64_t bytes, PageKind kind,
                                          Writers writers) {
  if (kind != PageKind::kHugetlb && AvailableBytes() < bytes + kFreeBytesMin)
    return NoMemory(bytes, kind, ENOMEM);
  ShmSegment segment;
  const unsigned huge_flags = kind == PageKind::kHugetlb ? MFD_HUGETLB | MFD_HUGE_2MB : 0;
  segment.fd_ = memfd_create("ems-segment", MFD_CLOEXEC | MFD_ALLOW_SEALING | huge_flags);
  if (segment.fd_ < 0) {
    return Error(StatusCode::kInternal, "memfd_create for {} of {} pages: {}", FormatBytes(bytes),
                 PageKindName(kind), ErrnoText(errno));
  }
  EMS_RETURN_IF_ERROR(segment.Reserve(nodes, bytes, kind));
  const bool for_successor = writers == Writers::kSuccessor;
  if (for_successor && fchmod(segment.fd_, S_IRUSR) != 0)
    return Error(StatusCode::kInternal, "the mode of a segment: {}", ErrnoText(errno));
  EMS_RETURN_IF_ERROR(segment.SealSize(for_successor));
  return segment;
}

Result<ShmSegment> ShmSegment::CreatePages(uint64_t bytes, bool peer_writes) {
  if (bytes == 0) return Error(StatusCode::kInvalidArgument, "a segment of 0 bytes");
  if (bytes > kMiB && AvailableBytes() < bytes + kFreeBytesMin)
    return NoMemory(bytes, PageKind::kSmall, ENOMEM);
  ShmSegment segment;
  segment.fd_ = memfd_create("ems-pages", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (segment.fd_ < 0) {
    return Error(StatusCode::kInternal, "memfd_create for {}: {}", FormatBytes(bytes),
                 ErrnoText(errno));
  }
  EMS_RETURN_IF_ERROR(segment.Reserve({}, RoundUp(bytes, kSmallPageBytes), PageKind::kSmall));
  EMS_RETURN_IF_ERROR(segment.SealSize(peer_writes));
  return segment;
}

// Our own mapping exists by now and stays writable under F_SEAL_FUTURE_WRITE. A kernel before 5.1
// does not know it: then CheckSealing says so before anything is shared.
Status ShmSegment::SealSize(bool others_write) {
  constexpr int kSize = F_SEAL_SHRINK | F_SEAL_GROW;
  if (!others_write) (void)fcntl(fd_, F_ADD_SEALS, kSealFutureWrite);
  if (fcntl(fd_, F_ADD_SEALS, kSize | F_SEAL_SEAL) == 0) return OkStatus();
  return Error(StatusCode::kInternal, "sealing a segment of {}: {}", FormatBytes(size_),
               ErrnoText(errno));
}

Result<Fd> ShmSegment::OpenReadOnly() const {
  EMS_CHECK(fd_ >= 0, "the segment was moved away");
  const std::string path = "/proc/self/fd/" + std::to_string(fd_);
  Fd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.valid()) return fd;
  return Error(StatusCode::kInternal, "opening {} read-only: {}", path, ErrnoText(errno));
}

namespace {

Status WentThrough(PageKind kind, std::string_view what) {
  return Error(
      StatusCode::kFailedPrecondition,
      "memory is not shared: this kernel lets the receiver of a sealed memfd ({} pages) {}",
      PageKindName(kind), what);
}

bool CanMapWritable(int fd, uint64_t bytes) {
  void* map = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (map == MAP_FAILED) return false;
  munmap(map, bytes);
  return true;
}

bool CanProtectWritable(int fd, uint64_t bytes) {
  void* map = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd, 0);
  if (map == MAP_FAILED) return false;
  const bool can = mprotect(map, bytes, PROT_READ | PROT_WRITE) == 0;
  munmap(map, bytes);
  return can;
}

bool CanWrite(int fd) {
  const char byte = 'x';
  return pwrite(fd, &byte, 1, 0) == 1;
}

bool CanChangeSize(int fd, uint64_t bytes) {
  return ftruncate(fd, 0) == 0 || ftruncate(fd, static_cast<off_t>(2 * bytes)) == 0;
}

bool CanPunch(int fd, uint64_t bytes) {
  return fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(bytes)) ==
         0;
}

// The descriptor as it is given away, and the best a receiver of the same user can make of it where
// nobody is to write any more.
Status CheckDescriptors(const ShmSegment& segment, Writers writers) {
  EMS_ASSIGN_OR_RETURN(const Fd given, segment.OpenReadOnly());
  const std::string path = "/proc/self/fd/" + std::to_string(given.get());
  const Fd reopened(writers == Writers::kSuccessor ? -1 : open(path.c_str(), O_RDWR | O_CLOEXEC));
  const uint64_t bytes = segment.size_bytes();
  const PageKind kind = segment.page_kind();
  for (const int fd : {given.get(), reopened.get()}) {
    if (fd < 0) continue;
    if (CanMapWritable(fd, bytes)) return WentThrough(kind, "map it for writing");
    if (CanProtectWritable(fd, bytes)) return WentThrough(kind, "make its mapping writable");
    if (CanWrite(fd)) return WentThrough(kind, "write to it");
    if (CanChangeSize(fd, bytes)) return WentThrough(kind, "change its size");
    if (CanPunch(fd, bytes)) return WentThrough(kind, "punch holes into it");
  }
  return OkStatus();
}

}  // namespace

Status ShmSegment::CheckSealing(Writers writers) {
  EMS_ASSIGN_OR_RETURN(const ShmSegment pages, CreatePages(kSmallPageBytes, false));
  EMS_RETURN_IF_ERROR(CheckDescriptors(pages, Writers::kThisProcess));
  const Result<ShmSegment> segment = CreateOn({}, kHugePageBytes, HugePages::kTry, writers);
  return segment.ok() ? CheckDescriptors(*segment, writers) : segment.status();
}

namespace {

struct PartPages {
  bool huge = true;  // as far as the kernel says
  int error = 0;     // errno of what has no pages
};

PartPages MakePart(MutableBytes part, PageKind kind) {
  PartPages made;
  if (kind == PageKind::kTransparent) made.huge = internal::MakeHuge(part.data(), part.size());
  if (madvise(part.data(), part.size(), MADV_POPULATE_WRITE) != 0) made.error = errno;
  return made;
}

// Parts of whole huge pages, one a thread: a single thread clears pages at a fraction of what the
// machine's memory takes, which is minutes for a large pool.
PartPages MakePages(MutableBytes all, PageKind kind) {
  constexpr uint64_t kThreadsMax = 8;
  constexpr uint64_t kPartBytesMin = 16 * kMiB;
  const uint64_t threads_max =
      std::clamp<uint64_t>(std::thread::hardware_concurrency(), 1, kThreadsMax);
  const uint64_t threads = std::clamp<uint64_t>(all.size() / kPartBytesMin, 1, threads_max);
  const uint64_t step = RoundUp((all.size() + threads - 1) / threads, kHugePageBytes);
  std::vector<PartPages> made((all.size() + step - 1) / step);
  const auto make = [&](size_t i) {
    made[i] = MakePart(all.subspan(i * step, std::min(step, all.size() - i * step)), kind);
  };
  {
    std::vector<Thread> helpers;
    for (size_t i = 1; i < made.size(); ++i) {
      try {
        helpers.emplace_back("ems-mem-" + std::to_string(i), [&make, i] { make(i); });
      } catch (const std::system_error&) {  // no more threads are to be had
        make(i);
      }
    }
    make(0);
  }
  PartPages whole;
  for (const PartPages& part : made) {
    whole.huge &= part.huge;
    if (part.error != 0) whole.error = part.error;
  }
  return whole;
}

}  // namespace

Status ShmSegment::Map(uint64_t bytes, PageKind kind) {
  if (fchmod(fd_, S_IRUSR | S_IWUSR) != 0 || ftruncate(fd_, static_cast<off_t>(bytes)) != 0)
    return Error(StatusCode::kInternal, "sizing a segment of {}: {}", FormatBytes(bytes),
                 ErrnoText(errno));
  return MapFile(bytes, kind);
}

Status ShmSegment::MapFile(uint64_t bytes, PageKind kind) {
  // Those of hugetlb are aligned anyway, and to map them fails wherever there are none.
  void* map = kind == PageKind::kHugetlb
                  ? mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0)
                  : internal::MapShared(fd_, bytes, PROT_READ | PROT_WRITE);
  if (map == MAP_FAILED) return NoMemory(bytes, kind, errno);
  data_ = static_cast<std::byte*>(map);
  size_ = bytes;
  page_kind_ = kind;
  return OkStatus();
}

// Maps, says where, and touches. Small pages are touched before fallocate, which would make them
// small for good where transparent huge pages are offered, and one after the other, as it makes
// those of hugetlb: mapping has reserved them.
Status ShmSegment::Reserve(const NumaNodes& nodes, uint64_t bytes, PageKind kind) {
  EMS_RETURN_IF_ERROR(Map(bytes, kind));
  // Best effort: the pages are what counts.
  if (!nodes.empty()) (void)SpreadOver(nodes, data_, size_);
  const PartPages made = MakePages(this->bytes(), kind);
  // Memory in pieces, or a limit of the control group: what is not huge is small.
  if (!made.huge) page_kind_ = PageKind::kSmall;
  if (made.error != 0 && made.error != EINVAL) {
    return IsNoMemory(made.error) ? NoMemory(bytes, kind, made.error)
                                  : Error(StatusCode::kInternal, "touching a segment of {}: {}",
                                          FormatBytes(bytes), ErrnoText(made.error));
  }
  if (fallocate(fd_, 0, 0, static_cast<off_t>(bytes)) != 0) return NoMemory(bytes, kind, errno);
  // Before Linux 5.14: touched by hand, now that the pages are there.
  if (made.error == EINVAL) std::memset(data_, 0, bytes);
  return OkStatus();
}

ShmSegment::ShmSegment(ShmSegment&& other) noexcept { *this = std::move(other); }

ShmSegment& ShmSegment::operator=(ShmSegment&& other) noexcept {
  if (this == &other) return *this;
  Close();
  fd_ = std::exchange(other.fd_, -1);
  data_ = std::exchange(other.data_, nullptr);
  size_ = std::exchange(other.size_, 0);
  page_kind_ = other.page_kind_;
  return *this;
}

ShmSegment::~ShmSegment() { Close(); }

void ShmSegment::Close() {
  if (data_ != nullptr) EMS_CHECK(munmap(data_, size_) == 0, "unmapping {} bytes", size_);
  if (fd_ >= 0) close(fd_);
  data_ = nullptr;
  fd_ = -1;
}

}  // namespace ems::fabric
