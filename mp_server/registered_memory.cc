#include "mp_server/registered_memory.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <utility>

#include "fabric/shm_segment.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

namespace ems::server {

using fabric::Fd;

namespace {

constexpr uint64_t kPageBytes = 4 * kKiB;

}  // namespace

Result<std::shared_ptr<const RegisteredMemory>> RegisteredMemory::Map(const Fd& fd,
                                                                      uint64_t bytes) {
  constexpr int kNeeded = F_SEAL_SHRINK | fabric::kSealFutureWrite;
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kNeeded) != kNeeded)
    return Error(StatusCode::kInvalidArgument,
                 "not a memfd sealed against shrinking and future writes");
  struct stat info {};
  struct statfs system {};
  if (fstat(fd.get(), &info) != 0 || static_cast<uint64_t>(info.st_size) != bytes || bytes == 0)
    return Error(StatusCode::kInvalidArgument, "the memfd has another size than {} bytes", bytes);
  // Elsewhere than in plain shared memory, touching it could fault (no huge page left).
  if (fstatfs(fd.get(), &system) != 0 || system.f_type != TMPFS_MAGIC)
    return Error(StatusCode::kInvalidArgument, "not plain shared memory");
  void* map = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (map == MAP_FAILED)
    return Error(StatusCode::kResourceExhausted, "mapping {} bytes: {}", bytes,
                 fabric::ErrnoText(errno));
  auto memory = std::make_shared<const RegisteredMemory>(Passkey{},
                                                         static_cast<const std::byte*>(map), bytes);
  if (madvise(map, 1, MADV_POPULATE_READ) != 0)
    return Error(StatusCode::kUnimplemented, "the kernel cannot map pages ahead: {}",
                 fabric::ErrnoText(errno));
  return memory;
}

RegisteredMemory::RegisteredMemory(Passkey, const std::byte* data, uint64_t bytes)
    : bytes_(data, bytes), mapped_(bytes / kPageBytes / 64 + 1) {}

RegisteredMemory::~RegisteredMemory() {
  munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

uint64_t RegisteredMemory::FirstUnmapped(uint64_t page, uint64_t end) const {
  while (page < end) {
    const uint64_t word = mapped_[page / 64].load(std::memory_order_relaxed) >> (page % 64);
    const auto run = static_cast<uint64_t>(std::countr_one(word));
    page += run;
    if (run == 0 || page % 64 != 0) return std::min(page, end);
  }
  return end;
}

Result<ConstBytes> RegisteredMemory::Part(uint64_t offset, uint64_t bytes) const {
  const uint64_t size = bytes_.size();
  if (offset > size || bytes > size - offset) {
    return Error(StatusCode::kInvalidArgument, "bytes {}+{} of registered memory of {}", offset,
                 bytes, size);
  }
  const ConstBytes part = bytes_.subspan(offset, bytes);
  const uint64_t end = (offset + bytes + kPageBytes - 1) / kPageBytes;
  const uint64_t first = bytes == 0 ? end : FirstUnmapped(offset / kPageBytes, end);
  if (first == end) return part;
  auto* const from = const_cast<std::byte*>(bytes_.data()) + first * kPageBytes;
  if (madvise(from, (end - first) * kPageBytes, MADV_POPULATE_READ) != 0) {
    return Error(StatusCode::kResourceExhausted, "pages of registered memory: {}",
                 fabric::ErrnoText(errno));
  }
  for (uint64_t page = first; page < end; ++page)
    mapped_[page / 64].fetch_or(uint64_t{1} << (page % 64), std::memory_order_relaxed);
  return part;
}

}  // namespace ems::server
