#pragma once
// Memory of a client that this server has mapped, to copy values of its Puts from.
//
// The client may write to it at any time; nothing in it is believed. Invariant: reading it makes no
// page that this process would pay for: it is the first part of plain shared memory, all of whose
// pages exist, sealed against shrinking and against giving pages back (F_SEAL_FUTURE_WRITE forbids
// that, too). A client that makes more pages registers a longer part.
// Bound: one piece a session, and so many bytes of all sessions together.
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <span>

#include "common/bytes.h"
#include "common/guarded.h"
#include "common/metrics.h"
#include "common/status.h"
#include "fabric/net/socket.h"
#include "fabric/rpc/rpc_session.h"

namespace ems::server {

// Threading: thread-safe.
class RegisteredMemory final {
  struct Passkey {};  // only Map constructs

 public:
  // Maps the first `bytes` of the file for reading. Errors: kInvalidArgument  not a memfd, shorter,
  // not sealed as above, with holes there, or not plain shared memory    kResourceExhausted  no
  // room to map it    Cost: O(pages) where they are small
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

// The registered memory of all sessions. Threading: Register and Drop from one thread; Find is
// thread-safe.
class RegisteredMemories final {
 public:
  // `bytes_max` of all together; `gauge` shows how many there are.
  RegisteredMemories(uint64_t bytes_max, const Gauge& gauge)
      : bytes_max_(bytes_max), gauge_(gauge) {}

  // The one descriptor in `fds`, as the memory of `session`, which staged Puts name with `secret`,
  // in place of what it has registered before: in general, less of the same.
  // Errors, which leave that as it is: kInvalidArgument  as RegisteredMemory::Map; not one
  // descriptor    kResourceExhausted  all together may not have more; no room to map it
  Status Register(uint64_t session, uint64_t secret, std::span<const fabric::Fd> fds,
                  uint64_t bytes);
  // Those who copy from it still keep it mapped.
  void Drop(uint64_t session);

  // The bytes of a staged Put. Errors: kInvalidArgument  no such session, wrong secret, or outside
  // of what it has registered
  Result<fabric::StagedBytes> Find(const wire::StagedValue& value);

 private:
  struct Entry {
    uint64_t secret = 0;
    std::shared_ptr<const RegisteredMemory> memory;
  };
  struct Table {
    std::map<uint64_t, Entry> by_session;
    uint64_t bytes = 0;  // of all entries
    uint64_t BytesOf(uint64_t session) const {
      const auto found = by_session.find(session);
      return found == by_session.end() ? 0 : found->second.memory->size_bytes();
    }
  };
  const uint64_t bytes_max_;
  const Gauge gauge_;
  Guarded<Table> table_;
};

}  // namespace ems::server
