#pragma once
// Memory of a client that this server has mapped, to copy values of its Puts from.
//
// The client may write to it at any time; nothing in it is believed. Invariant: reading it never
// faults: it is plain shared memory, sealed against shrinking and against giving pages back
// (F_SEAL_FUTURE_WRITE forbids that, too), and pages are mapped here before they are read, by a
// call that would fail instead. Holes become pages, which this process may have to pay for: another
// reason for shm.registered_bytes_max. No call waits for a lock that the client can hold. Bound:
// one piece a session (shm_service.h); a bit for each page.
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/bytes.h"
#include "common/status.h"
#include "fabric/socket.h"

namespace ems::server {

// Threading: thread-safe.
class RegisteredMemory final {
  struct Passkey {};  // only Map constructs

 public:
  // Maps `bytes` of the file for reading. Errors: kInvalidArgument  not a memfd of this size, not
  // sealed as above, or not plain shared memory    kResourceExhausted  no room to map it
  //   kUnimplemented  a kernel before Linux 5.14
  static Result<std::shared_ptr<const RegisteredMemory>> Map(const fabric::Fd& fd, uint64_t bytes);

  RegisteredMemory(Passkey, const std::byte* data, uint64_t bytes);
  ~RegisteredMemory();
  RegisteredMemory(const RegisteredMemory&) = delete;
  RegisteredMemory& operator=(const RegisteredMemory&) = delete;

  uint64_t size_bytes() const { return bytes_.size(); }
  // Part of it. Cost: a bit for each page; a system call when some were not read before.
  // Errors: kInvalidArgument  outside    kResourceExhausted  its pages cannot be had
  Result<ConstBytes> Part(uint64_t offset, uint64_t bytes) const;

 private:
  // The first page in [page, end) that was not mapped yet; `end`: all were.
  uint64_t FirstUnmapped(uint64_t page, uint64_t end) const;

  const ConstBytes bytes_;
  mutable std::vector<std::atomic<uint64_t>> mapped_;  // a bit a page
};

}  // namespace ems::server
