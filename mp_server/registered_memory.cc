#include "mp_server/registered_memory.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <cerrno>

#include "fabric/shm_segment.h"

namespace ems::server {

using fabric::Fd;

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
  // What was allotted stays: sealed so, pages can neither be punched out nor cut off.
  constexpr uint64_t kBlockBytes = 512;
  const uint64_t allotted = static_cast<uint64_t>(info.st_blocks) * kBlockBytes;
  if (allotted < bytes)
    return Error(StatusCode::kInvalidArgument, "it has holes: {} of {} bytes are there", allotted,
                 bytes);
  // Elsewhere than in plain shared memory, touching it could fault (no huge page left).
  if (fstatfs(fd.get(), &system) != 0 || system.f_type != TMPFS_MAGIC)
    return Error(StatusCode::kInvalidArgument, "not plain shared memory");
  void* map = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (map == MAP_FAILED)
    return Error(StatusCode::kResourceExhausted, "mapping {} bytes: {}", bytes,
                 fabric::ErrnoText(errno));
  return std::make_shared<const RegisteredMemory>(Passkey{}, static_cast<const std::byte*>(map),
                                                  bytes);
}

RegisteredMemory::~RegisteredMemory() {
  munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

Result<ConstBytes> RegisteredMemory::Part(uint64_t offset, uint64_t bytes) const {
  const uint64_t size = bytes_.size();
  if (offset > size || bytes > size - offset) {
    return Error(StatusCode::kInvalidArgument, "bytes {}+{} of registered memory of {}", offset,
                 bytes, size);
  }
  return bytes_.subspan(offset, bytes);
}

}  // namespace ems::server
