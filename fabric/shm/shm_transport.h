#pragma once
// Memory of another process on this host: sealed memfds, handed over a Unix socket (fd_message.h),
// mapped.
//
// A descriptor from a peer is checked before it is mapped (a file that can shrink would make a read
// a SIGBUS), and mapped read-only. Bound: the bytes that the peer has stated.
#include <atomic>
#include <memory>
#include <vector>

#include "common/status.h"
#include "fabric/net/socket.h"
#include "fabric/shm/transport.h"

namespace ems::fabric {

// A memfd of this process, mapped read-write and sealed: its size stays, and so does every page
// once it is made.
// Threading: immutable; the bytes are the caller's matter.
class SharedMemory final {
 public:
  // Pages are made as they are touched, or by Populate. Errors: kResourceExhausted
  static Result<std::unique_ptr<SharedMemory>> Create(const char* name, uint64_t bytes);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  MutableBytes bytes() const { return bytes_; }
  int fd() const { return fd_.get(); }
  // Makes the pages of a part of it now, huge ones where it covers 2 MiB and the kernel gives them.
  // Errors: kResourceExhausted  the machine has no such memory
  Status Populate(uint64_t offset, uint64_t bytes) const;

 private:
  SharedMemory(Fd fd, MutableBytes bytes);
  void MakeHuge(uint64_t offset, uint64_t bytes) const;

  Fd fd_;
  MutableBytes bytes_;
  mutable std::vector<std::atomic<bool>> huge_asked_;  // by 2 MiB
};

// A peer's memfd, mapped read-only. Threading: thread-safe, but for Blank (one thread).
class MappedMemory final : public RemoteMemory {
 public:
  // Checks that the file behind the descriptor is of `bytes` and cannot shrink, then maps it and
  // enters all its pages into the page table, so that a read pays for no fault.
  // Errors: kInvalidArgument  another size, not sealed, not a file    kResourceExhausted  no room
  static Result<std::unique_ptr<MappedMemory>> Map(const Fd& fd, uint64_t bytes);
  ~MappedMemory() override;
  MappedMemory(const MappedMemory&) = delete;
  MappedMemory& operator=(const MappedMemory&) = delete;

  uint64_t size_bytes() const override { return bytes_.size(); }
  uint64_t LoadWord(uint64_t offset) const override;
  void Read(uint64_t offset, MutableBytes into) const override;
  const std::byte* address() const override { return bytes_.data(); }

  // Gives the peer's memory back and puts zeros in its place, at the same address: who is reading
  // it meanwhile finds zeros. The address range stays until destruction.
  void Blank();

 private:
  explicit MappedMemory(ConstBytes bytes) : bytes_(bytes) {}
  ConstBytes bytes_;
};

// A peer's memfd, mapped for reading and writing. Threading: thread-safe.
class SharedPage final {
 public:
  // Checks as MappedMemory::Map does; `bytes` at most the file's. Errors: the same
  static Result<std::unique_ptr<SharedPage>> Map(const Fd& fd, uint64_t bytes);
  ~SharedPage();
  SharedPage(const SharedPage&) = delete;
  SharedPage& operator=(const SharedPage&) = delete;

  uint64_t size_bytes() const { return bytes_.size(); }
  std::byte* writable_address() { return bytes_.data(); }

 private:
  explicit SharedPage(MutableBytes bytes) : bytes_(bytes) {}
  MutableBytes bytes_;
};

}  // namespace ems::fabric
