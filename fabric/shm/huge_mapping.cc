#include "fabric/shm/huge_mapping.h"

#include <sys/mman.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <fstream>
#include <string>

#include "common/bytes.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

namespace ems::fabric::internal {
namespace {

constexpr uint64_t kHuge = 2 * kMiB;

enum class Policy : uint8_t { kDenied, kOnRequest, kByFault };

// What the administrator lets shared memory have. "never" is the kernel's default, and is about
// faults: a request is served all the same.
Policy ReadPolicy() {
  std::ifstream file("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
  std::string line;
  std::getline(file, line);
  if (line.find("[deny]") != std::string::npos) return Policy::kDenied;
  return line.find("[never]") != std::string::npos ? Policy::kOnRequest : Policy::kByFault;
}

}  // namespace

void* MapShared(int fd, uint64_t bytes, int protection) {
  if (bytes < kHuge) return ::mmap(nullptr, bytes, protection, MAP_SHARED, fd, 0);
  // Addresses are taken first, then what sticks out of the aligned part is given back.
  const uint64_t length = RoundUp(bytes, 4 * kKiB);
  void* const room = ::mmap(nullptr, length + kHuge, PROT_NONE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) return MAP_FAILED;
  auto* const begin = static_cast<std::byte*>(room);
  const uint64_t before = -reinterpret_cast<uintptr_t>(begin) % kHuge;
  void* const map = ::mmap(begin + before, bytes, protection, MAP_SHARED | MAP_FIXED, fd, 0);
  const int error = errno;
  if (before > 0) (void)::munmap(room, before);
  if (before < kHuge) (void)::munmap(begin + before + length, kHuge - before);
  // When the mapping fails, the kernel may have taken the addresses in the middle away before, and
  // another thread may have its stack there by now: they are left alone.
  errno = error;
  return map;
}

bool MakeHuge(void* at, uint64_t bytes) {
  static const Policy policy = ReadPolicy();
  if (policy == Policy::kDenied) return false;
  auto* const first = static_cast<std::byte*>(at);
  const uint64_t skipped = -reinterpret_cast<uintptr_t>(first) % kHuge;
  if (skipped >= bytes) return true;
  std::byte* const begin = first + skipped;
  const uint64_t length = (bytes - skipped) / kHuge * kHuge;
  if (length == 0) return true;
  (void)::madvise(begin, length, MADV_HUGEPAGE);  // for kernels that fault huge pages in
  for (std::byte* unit = begin; unit < begin + length; unit += kHuge) {
    // An empty unit is not collapsed; one page of it may be enough for the kernel to make it whole.
    // Adding zero is a write, and loses none of anybody else.
    std::byte* const page =
        unit + FirstPageOf(reinterpret_cast<uintptr_t>(unit) / kHuge) * 4 * kKiB;
    std::atomic_ref(*reinterpret_cast<uint8_t*>(page)).fetch_add(0, std::memory_order_relaxed);
    if (::madvise(unit, kHuge, MADV_COLLAPSE) == 0) continue;
    // Older than Linux 6.1: it does not say what a fault has given.
    return errno == EINVAL && unit == begin && policy == Policy::kByFault;
  }
  return true;
}

}  // namespace ems::fabric::internal
