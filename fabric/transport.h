#pragma once
// The seam for the hardware between a client and a server: memory that peers may read, reads of a
// peer's memory without its help, and messages.
//
// Providers: shm_transport (this host: mapped memory), tcp_transport (messages alone). RDMA or UB
// is one more: Allocate registers with the card, a grant carries address and key instead of a
// descriptor, Read and Write post a READ or WRITE and wait for it. The protocol above
// (docs/ONE_SIDED_READS.md) asks for no order among the bytes of one Read, which is all that such
// cards promise.
#include <cstdint>
#include <memory>
#include <string_view>

#include "common/bytes.h"
#include "common/clock.h"
#include "common/status.h"
#include "fabric/rpc_channel.h"
#include "fabric/socket.h"

namespace ems::fabric {

// What a peer must be given to reach memory; it travels beside a message.
struct MemoryGrant {
  Fd fd;               // mapped memory
  uint64_t bytes = 0;  // of the memory
};

// Memory of this process that was registered, for as long as this lives.
class LocalMemory {
 public:
  virtual ~LocalMemory() = default;
  virtual MutableBytes bytes() const = 0;
  // A grant to read it. Errors: kInternal  a system call failed
  virtual Result<MemoryGrant> Grant() const = 0;
};

// A peer's memory. Offsets are checked by the caller: offset + length <= size_bytes(). When the
// peer has taken the memory back, zeros are read: nobody has to look at an error at every word.
// Threading: thread-safe.
class RemoteMemory {
 public:
  virtual ~RemoteMemory() = default;
  virtual uint64_t size_bytes() const = 0;
  // The word at `offset` (a multiple of 8), whole, ordered like an acquire load: what is read later
  // is not older.
  virtual uint64_t LoadWord(uint64_t offset) const = 0;
  // Copies `into.size()` bytes from `offset`. They may change meanwhile, and no order is promised
  // among them. Complete when it returns; an acquire fence orders it before later loads.
  virtual void Read(uint64_t offset, MutableBytes into) const = 0;
  // The memory itself, or nullptr when the CPU cannot address it.
  virtual const std::byte* address() const = 0;
};

// The same, granted for writing, too: a page that two processes share. Threading: thread-safe.
class WritableMemory : public RemoteMemory {
 public:
  // Stores a word at `offset` (a multiple of 8), whole, ordered like a release store: who reads it
  // there finds what was written before.
  virtual void StoreWord(uint64_t offset, uint64_t word) = 0;
  // Copies `from` to `offset`; complete at the peer when it returns.
  virtual void Write(uint64_t offset, ConstBytes from) = 0;
  // The memory itself, or nullptr when the CPU cannot address it.
  virtual std::byte* writable_address() = 0;
};

// Threading: thread-safe.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual std::string_view name() const = 0;

  // One-sided. All zero, registered; `bytes` are rounded up to pages.
  // Errors: kUnimplemented  messages only    kResourceExhausted  no such memory
  virtual Result<std::unique_ptr<LocalMemory>> Allocate(uint64_t bytes) = 0;
  // Reaches memory that a peer has granted. Errors: kUnimplemented  messages only
  //   kInvalidArgument  not what the grant says    kResourceExhausted  cannot be mapped
  virtual Result<std::unique_ptr<RemoteMemory>> Reach(MemoryGrant grant) = 0;

  // The same for memory that was granted for writing. Errors: as Reach
  virtual Result<std::unique_ptr<WritableMemory>> ReachToWrite(MemoryGrant grant) = 0;

  // Messages: requests and answers (proto/data_plane.h), and values that nobody reads one-sided.
  // Blocks up to `timeout`. Errors: those of RpcChannel::Open
  virtual Result<std::unique_ptr<RpcChannel>> Connect(const Address& address, Duration timeout) = 0;
};

}  // namespace ems::fabric
