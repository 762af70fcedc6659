#pragma once
// Memory of a client that this server has mapped, to copy values of its Puts from.
//
// The client may write to it at any time; nothing in it is believed. Invariant: reading it neither
// faults nor makes pages here: it is plain shared memory, sealed against shrinking and against
// giving pages back (F_SEAL_FUTURE_WRITE forbids that, too), and holes are not read. Bound: one
// piece a session (shm_service.h); a bit for each page.
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
  static Result<std::shared_ptr<const RegisteredMemory>> Map(const fabric::Fd& fd, uint64_t bytes);

  RegisteredMemory(Passkey, const std::byte* data, uint64_t bytes, fabric::Fd fd);
  ~RegisteredMemory();
  RegisteredMemory(const RegisteredMemory&) = delete;
  RegisteredMemory& operator=(const RegisteredMemory&) = delete;

  uint64_t size_bytes() const { return bytes_.size(); }
  // Part of it. Cost: a bit for each page; when some were not seen before, a system call that walks
  // over what is written from there on.
  // Errors: kInvalidArgument  outside, or never written: this process would pay for the pages
  Result<ConstBytes> Part(uint64_t offset, uint64_t bytes) const;

 private:
  // All of the walks together, in pages of the memory: who writes and names it in such an order
  // that each walk is a long one is refused in the end.
  static constexpr uint64_t kWalksMax = 64;
  // The first page in [page, end) that was not seen to be there; `end`: all were.
  uint64_t FirstUnseen(uint64_t page, uint64_t end) const;
  void SeeFrom(uint64_t page) const;

  const ConstBytes bytes_;
  const fabric::Fd fd_;
  const uint64_t pages_;
  mutable std::vector<std::atomic<uint64_t>> seen_;  // a bit a page
  mutable std::atomic<uint64_t> walked_{0};
};

}  // namespace ems::server
