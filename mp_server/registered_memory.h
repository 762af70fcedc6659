#pragma once
// Memory of a client that this server has mapped, to copy values of its Puts from.
//
// The client may write to it at any time; nothing in it is believed. Invariant: reading it neither
// faults nor makes pages here: it is plain shared memory, sealed against shrinking, and holes are
// not read. Bound: one piece a session (shm_service.h).
#include <cstdint>
#include <memory>

#include "common/bytes.h"
#include "common/status.h"
#include "fabric/socket.h"

namespace ems::server {

// Threading: thread-safe.
class RegisteredMemory final {
  struct Passkey {};  // only Map constructs

 public:
  // Maps `bytes` of the file for reading. Errors: kInvalidArgument  not a memfd of this size, not
  // sealed against shrinking, or not plain shared memory    kResourceExhausted  no room to map it
  static Result<std::shared_ptr<const RegisteredMemory>> Map(const fabric::Fd& fd, uint64_t bytes);

  RegisteredMemory(Passkey, const std::byte* data, uint64_t bytes, fabric::Fd fd)
      : bytes_(data, bytes), fd_(std::move(fd)) {}
  ~RegisteredMemory();
  RegisteredMemory(const RegisteredMemory&) = delete;
  RegisteredMemory& operator=(const RegisteredMemory&) = delete;

  uint64_t size_bytes() const { return bytes_.size(); }
  // Part of it. Cost: a system call.
  // Errors: kInvalidArgument  outside, or never written: this process would pay for the pages
  Result<ConstBytes> Part(uint64_t offset, uint64_t bytes) const;

 private:
  const ConstBytes bytes_;
  const fabric::Fd fd_;
};

}  // namespace ems::server
