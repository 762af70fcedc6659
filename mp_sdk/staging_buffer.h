#pragma once
// Memory that the servers of this host can read: a value that is made here needs no copy on its way
// to them.
//
// Give a part of it to Put or MultiPut like any other memory. Servers on other hosts get it over
// the socket. Bound: ClientOptions::staging_bytes for all buffers of a client.
#include <memory>
#include <utility>

#include "common/bytes.h"

namespace ems {

// The memory that buffers are parts of. Threading: thread-safe.
class StagingOwner {
 public:
  virtual ~StagingOwner() = default;
  // Takes back the bytes of a buffer.
  virtual void Free(MutableBytes bytes) = 0;
};

// Move-only. Threading: one thread at a time (holder). May outlive the Client; then it is plain
// memory.
class StagingBuffer final {
 public:
  StagingBuffer() = default;
  StagingBuffer(std::shared_ptr<StagingOwner> memory, MutableBytes bytes)
      : memory_(std::move(memory)), bytes_(bytes) {}
  StagingBuffer(StagingBuffer&& other) noexcept { *this = std::move(other); }
  StagingBuffer& operator=(StagingBuffer&& other) noexcept;
  ~StagingBuffer() { Release(); }

  // 4 KiB aligned. Contents are undefined at first. Do not write while a Put of it is under way:
  // the Put then stores either what was or what is there.
  MutableBytes bytes() const { return bytes_; }
  // Gives the memory back before the buffer ends.
  void Release();

 private:
  std::shared_ptr<StagingOwner> memory_;
  MutableBytes bytes_;
};

}  // namespace ems
