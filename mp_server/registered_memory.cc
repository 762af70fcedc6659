#include "mp_server/registered_memory.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace ems::server {

using fabric::Fd;

Result<std::shared_ptr<const RegisteredMemory>> RegisteredMemory::Map(const Fd& fd,
                                                                      uint64_t bytes) {
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0)
    return Error(StatusCode::kInvalidArgument, "not a memfd sealed against shrinking");
  struct stat info {};
  struct statfs system {};
  if (fstat(fd.get(), &info) != 0 || static_cast<uint64_t>(info.st_size) != bytes || bytes == 0)
    return Error(StatusCode::kInvalidArgument, "the memfd has another size than {} bytes", bytes);
  // Elsewhere than in plain shared memory, touching it could fault (no huge page left).
  if (fstatfs(fd.get(), &system) != 0 || system.f_type != TMPFS_MAGIC)
    return Error(StatusCode::kInvalidArgument, "not plain shared memory");
  Fd kept(fcntl(fd.get(), F_DUPFD_CLOEXEC, 0));
  void* map = kept.valid() ? mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd.get(), 0) : MAP_FAILED;
  if (map == MAP_FAILED)
    return Error(StatusCode::kResourceExhausted, "mapping {} bytes: {}", bytes,
                 fabric::ErrnoText(errno));
  return std::make_shared<const RegisteredMemory>(Passkey{}, static_cast<const std::byte*>(map),
                                                  bytes, std::move(kept));
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
  if (bytes > 0 && lseek(fd_.get(), static_cast<off_t>(offset), SEEK_HOLE) <
                       static_cast<off_t>(offset + bytes)) {
    return Error(StatusCode::kInvalidArgument,
                 "bytes {}+{} of registered memory were never written", offset, bytes);
  }
  return bytes_.subspan(offset, bytes);
}

}  // namespace ems::server
