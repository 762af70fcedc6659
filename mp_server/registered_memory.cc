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

namespace ems::server {

using fabric::Fd;

namespace {

constexpr uint64_t kPageBytes = 4 * kKiB;  // at least: larger ones are seen in parts

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
  Fd kept(fcntl(fd.get(), F_DUPFD_CLOEXEC, 0));
  void* map = kept.valid() ? mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd.get(), 0) : MAP_FAILED;
  if (map == MAP_FAILED)
    return Error(StatusCode::kResourceExhausted, "mapping {} bytes: {}", bytes,
                 fabric::ErrnoText(errno));
  return std::make_shared<const RegisteredMemory>(Passkey{}, static_cast<const std::byte*>(map),
                                                  bytes, std::move(kept));
}

RegisteredMemory::RegisteredMemory(Passkey, const std::byte* data, uint64_t bytes, Fd fd)
    : bytes_(data, bytes),
      fd_(std::move(fd)),
      pages_((bytes + kPageBytes - 1) / kPageBytes),
      seen_((pages_ + 63) / 64) {}

RegisteredMemory::~RegisteredMemory() {
  munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

uint64_t RegisteredMemory::FirstUnseen(uint64_t page, uint64_t end) const {
  while (page < end) {
    const uint64_t word = seen_[page / 64].load(std::memory_order_relaxed) >> (page % 64);
    const auto run = static_cast<uint64_t>(std::countr_one(word));
    page += run;
    if (run == 0 || page % 64 != 0) return std::min(page, end);
  }
  return end;
}

void RegisteredMemory::SeeFrom(uint64_t page) const {
  if (walked_.load(std::memory_order_relaxed) > kWalksMax * pages_) return;
  const off_t hole = lseek(fd_.get(), static_cast<off_t>(page * kPageBytes), SEEK_HOLE);
  if (hole < 0) return;
  const uint64_t end =
      std::min((static_cast<uint64_t>(hole) + kPageBytes - 1) / kPageBytes, pages_);
  walked_.fetch_add(end - page, std::memory_order_relaxed);
  for (; page < end; ++page)
    seen_[page / 64].fetch_or(uint64_t{1} << (page % 64), std::memory_order_relaxed);
}

Result<ConstBytes> RegisteredMemory::Part(uint64_t offset, uint64_t bytes) const {
  const uint64_t size = bytes_.size();
  if (offset > size || bytes > size - offset) {
    return Error(StatusCode::kInvalidArgument, "bytes {}+{} of registered memory of {}", offset,
                 bytes, size);
  }
  const uint64_t end = (offset + bytes + kPageBytes - 1) / kPageBytes;
  uint64_t unseen = FirstUnseen(offset / kPageBytes, end);
  if (unseen < end) {
    SeeFrom(unseen);
    unseen = FirstUnseen(unseen, end);
  }
  if (bytes > 0 && unseen < end) {
    return Error(StatusCode::kInvalidArgument,
                 "bytes {}+{} of registered memory were never written", offset, bytes);
  }
  return bytes_.subspan(offset, bytes);
}

}  // namespace ems::server
