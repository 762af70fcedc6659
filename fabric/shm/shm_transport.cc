#include "fabric/shm/shm_transport.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

#include "common/check.h"
#include "common/copy.h"
#include "fabric/shm/huge_mapping.h"
#include "fabric/shm/shm_segment.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace ems::fabric {
namespace {

constexpr uint64_t kPageBytes = 4 * kKiB;

Status NoMemory(uint64_t bytes, std::string_view what, int error) {
  return Error(StatusCode::kResourceExhausted, "{} of {}: {}", what, FormatBytes(bytes),
               ErrnoText(error));
}

// A file that may be mapped: memory, `bytes_min` long at least, and never shorter.
Status CheckDescriptor(const Fd& fd, uint64_t bytes_min, bool exactly) {
  struct stat info {};
  if (!fd.valid() || ::fstat(fd.get(), &info) != 0) {
    return Error(StatusCode::kInvalidArgument, "no descriptor of shared memory came along");
  }
  const auto size = static_cast<uint64_t>(info.st_size);
  if (!S_ISREG(info.st_mode) || (exactly ? size != bytes_min : size < bytes_min)) {
    return Error(StatusCode::kInvalidArgument, "shared memory of {} bytes, {} were announced", size,
                 bytes_min);
  }
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return Error(StatusCode::kInvalidArgument, "shared memory of {} bytes is not sealed", size);
  }
  return OkStatus();
}

}  // namespace

Result<std::unique_ptr<SharedMemory>> SharedMemory::Create(const char* name, uint64_t bytes) {
  if (bytes == 0) return Error(StatusCode::kInvalidArgument, "shared memory of 0 bytes");
  bytes = RoundUp(bytes, kPageBytes);
  Fd fd(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return NoMemory(bytes, "memfd_create", errno);
  if (::fchmod(fd.get(), S_IRUSR | S_IWUSR) != 0 ||
      ::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    return NoMemory(bytes, "sizing shared memory", errno);
  }
  void* map = internal::MapShared(fd.get(), bytes, PROT_READ | PROT_WRITE);
  if (map == MAP_FAILED) return NoMemory(bytes, "mapping shared memory", errno);
  std::unique_ptr<SharedMemory> memory(
      new SharedMemory(std::move(fd), {static_cast<std::byte*>(map), bytes}));
  // From here on pages may be written, through this mapping, but not given back: what a reader has
  // found there stays. A kernel before 5.1 does not know this seal; then servers do not map it.
  (void)::fcntl(memory->fd(), F_ADD_SEALS, kSealFutureWrite);
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  if (::fcntl(memory->fd(), F_ADD_SEALS, kSeals) != 0)
    return NoMemory(bytes, "sealing shared memory", errno);
  return memory;
}

SharedMemory::~SharedMemory() {
  EMS_CHECK(::munmap(bytes_.data(), bytes_.size()) == 0, "unmapping {} bytes", bytes_.size());
}

SharedMemory::SharedMemory(Fd fd, MutableBytes bytes)
    : fd_(std::move(fd)), bytes_(bytes), huge_asked_(bytes.size() / kHugePageBytes) {}

// Asked for once a unit: the kernel's answer is slow, whatever it is.
void SharedMemory::MakeHuge(uint64_t offset, uint64_t bytes) const {
  const uint64_t end = (offset + bytes) / kHugePageBytes;
  for (uint64_t unit = (offset + kHugePageBytes - 1) / kHugePageBytes; unit < end; ++unit) {
    if (huge_asked_[unit].exchange(true, std::memory_order_relaxed)) continue;
    (void)internal::MakeHuge(bytes_.data() + unit * kHugePageBytes, kHugePageBytes);
  }
}

Status SharedMemory::Populate(uint64_t offset, uint64_t bytes) const {
  EMS_CHECK(offset <= bytes_.size() && bytes <= bytes_.size() - offset);
  MakeHuge(offset, bytes);
  std::byte* const at = bytes_.data() + offset / kPageBytes * kPageBytes;
  const uint64_t length = bytes + offset % kPageBytes;
  if (::madvise(at, length, MADV_POPULATE_WRITE) == 0) return OkStatus();
  // Before Linux 5.14: make the pages, then touch them, as a server takes others for holes. Adding
  // zero is a write, and loses none of anybody else.
  if (errno == EINVAL &&
      ::fallocate(fd_.get(), 0, at - bytes_.data(), static_cast<off_t>(length)) == 0) {
    for (uint64_t i = 0; i < length; i += kPageBytes)
      std::atomic_ref(*reinterpret_cast<uint8_t*>(at + i)).fetch_add(0, std::memory_order_relaxed);
    return OkStatus();
  }
  return NoMemory(bytes, "making pages", errno);
}

Result<std::unique_ptr<MappedMemory>> MappedMemory::Map(const Fd& fd, uint64_t bytes) {
  EMS_RETURN_IF_ERROR(CheckDescriptor(fd, bytes, true));
  if (bytes == 0) return Error(StatusCode::kInvalidArgument, "shared memory of 0 bytes");
  void* map = internal::MapShared(fd.get(), bytes, PROT_READ);
  if (map == MAP_FAILED) return NoMemory(bytes, "mapping shared memory", errno);
  (void)::madvise(map, bytes, MADV_POPULATE_READ);  // older kernels fault as they go
  // A client's core dump is not the place for the pool.
  (void)::madvise(map, bytes, MADV_DONTDUMP);
  return std::unique_ptr<MappedMemory>(
      new MappedMemory({static_cast<const std::byte*>(map), bytes}));
}

MappedMemory::~MappedMemory() {
  EMS_CHECK(::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size()) == 0,
            "unmapping {} bytes", bytes_.size());
}

uint64_t MappedMemory::LoadWord(uint64_t offset) const {
  const auto* word = reinterpret_cast<const std::atomic<uint64_t>*>(bytes_.data() + offset);
  return word->load(std::memory_order_acquire);
}

// The other process may write meanwhile: what was copied counts only once the caller's check of a
// word that was read before and after says so.
void MappedMemory::Read(uint64_t offset, MutableBytes into) const {
  EMS_CHECK(offset <= bytes_.size() && into.size() <= bytes_.size() - offset);
  CopyValue(into, bytes_.data() + offset, nullptr);
}

void MappedMemory::Blank() {
  void* const at = const_cast<std::byte*>(bytes_.data());
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE;
  // A process with too many mappings keeps this one: memory is lost until it goes, nothing else.
  (void)::mmap(at, bytes_.size(), PROT_READ, kFlags, -1, 0);
}

Result<std::unique_ptr<SharedPage>> SharedPage::Map(const Fd& fd, uint64_t bytes) {
  EMS_RETURN_IF_ERROR(CheckDescriptor(fd, bytes, false));
  void* map =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd.get(), 0);
  if (map == MAP_FAILED) return NoMemory(bytes, "mapping a shared page", errno);
  return std::unique_ptr<SharedPage>(
      new SharedPage(MutableBytes(static_cast<std::byte*>(map), bytes)));
}

SharedPage::~SharedPage() {
  EMS_CHECK(::munmap(bytes_.data(), bytes_.size()) == 0, "unmapping {} bytes", bytes_.size());
}

}  // namespace ems::fabric
