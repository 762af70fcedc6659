#pragma once
// Memory of a client that this server has mapped, to copy values of its Puts from.
//
// The client may write to it at any time; nothing in it is believed. Invariant: reading it makes no
// page that this process would pay for: it is plain shared memory, all of whose pages exist, sealed
// against shrinking and against giving pages back (F_SEAL_FUTURE_WRITE forbids that, too).
// Bound: one piece a session (shm_service.h).
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
  // sealed as above, with holes, or not plain shared memory    kResourceExhausted  no room to map
  // it
  static Result<std::shared_ptr<const RegisteredMemory>> Map(const fabric::Fd& fd, uint64_t bytes);

  RegisteredMemory(Passkey, const std::byte* data, uint64_t bytes) : bytes_(data, bytes) {}
  ~RegisteredMemory();
  RegisteredMemory(const RegisteredMemory&) = delete;
  RegisteredMemory& operator=(const RegisteredMemory&) = delete;

  uint64_t size_bytes() const { return bytes_.size(); }
  // Part of it. Errors: kInvalidArgument  outside
  Result<ConstBytes> Part(uint64_t offset, uint64_t bytes) const;

 private:
  const ConstBytes bytes_;
};

}  // namespace ems::server
