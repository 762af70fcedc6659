#include "mp_server/shm/registered_memory.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <cerrno>
#include <utility>

#include "common/check.h"
#include "fabric/shm/shm_segment.h"

namespace ems::server {

using fabric::Fd;

namespace {

// Whether the first `bytes` of a file have their pages. What is there stays: sealed as below, pages
// can neither be punched out nor cut off. Allotted blocks prove nothing, as some may lie elsewhere.
bool AllThere(const Fd& fd, uint64_t bytes) {
  const off_t hole = lseek(fd.get(), 0, SEEK_HOLE);
  return hole >= 0 && static_cast<uint64_t>(hole) >= bytes;
}

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
  if (fstat(fd.get(), &info) != 0 || static_cast<uint64_t>(info.st_size) < bytes || bytes == 0)
    return Error(StatusCode::kInvalidArgument, "the memfd is shorter than {} bytes", bytes);
  if (!AllThere(fd, bytes))
    return Error(StatusCode::kInvalidArgument, "its first {} bytes have holes", bytes);
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

Status RegisteredMemories::Register(uint64_t session, uint64_t secret,
                                    std::span<const fabric::Fd> fds, uint64_t bytes) {
  if (fds.size() != 1) return Error(StatusCode::kInvalidArgument, "one descriptor is needed");
  {
    auto table = table_.Lock();
    if (bytes > bytes_max_ - (table->bytes - table->BytesOf(session))) {
      return Error(StatusCode::kResourceExhausted,
                   "clients have registered all they may: see shm.registered_bytes_max");
    }
  }
  EMS_ASSIGN_OR_RETURN(auto memory, RegisteredMemory::Map(fds.front(), bytes));
  auto table = table_.Lock();
  table->bytes += bytes - table->BytesOf(session);
  EMS_CHECK(table->bytes <= bytes_max_, "{} of {} bytes", table->bytes, bytes_max_);
  gauge_.Set(static_cast<double>(table->bytes));
  Entry& entry = table->by_session[session];
  entry.secret = secret;
  std::swap(entry.memory, memory);  // the old mapping goes outside the lock
  return OkStatus();
}

void RegisteredMemories::Drop(uint64_t session) {
  std::shared_ptr<const RegisteredMemory> memory;  // unmapped outside the lock
  auto table = table_.Lock();
  const auto found = table->by_session.find(session);
  if (found == table->by_session.end()) return;
  memory = std::move(found->second.memory);
  EMS_CHECK(memory->size_bytes() <= table->bytes, "{} bytes of {} are dropped",
            memory->size_bytes(), table->bytes);
  table->bytes -= memory->size_bytes();
  gauge_.Set(static_cast<double>(table->bytes));
  table->by_session.erase(found);
  table.Unlock();
}

Result<fabric::StagedBytes> RegisteredMemories::Find(const wire::StagedValue& value) {
  std::shared_ptr<const RegisteredMemory> memory;
  {
    auto table = table_.Lock();
    const auto found = table->by_session.find(value.session);
    if (found != table->by_session.end() && found->second.secret == value.secret)
      memory = found->second.memory;
  }
  if (memory == nullptr)
    return Error(StatusCode::kInvalidArgument, "no such session, or it has registered no memory");
  fabric::StagedBytes staged;
  EMS_ASSIGN_OR_RETURN(staged.bytes, memory->Part(value.offset, value.bytes));
  if (value.progress_at != wire::kAllThere) {
    using Word = std::atomic<uint64_t>;
    if (value.progress_at % sizeof(Word) != 0)
      return Error(StatusCode::kInvalidArgument, "a word at {}", value.progress_at);
    EMS_ASSIGN_OR_RETURN(const ConstBytes word, memory->Part(value.progress_at, sizeof(Word)));
    staged.progress = reinterpret_cast<const Word*>(word.data());
  }
  staged.keep = std::move(memory);
  return staged;
}

}  // namespace ems::server
