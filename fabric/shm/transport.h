#pragma once
// The interface to the hardware between a client and a server: reads of a peer's memory without its
// help. Messages go over rpc/rpc_channel.h.
//
// Provider: shm_transport (this host: mapped memory). RDMA or UB is one more: a peer's memory is
// reached by address and key instead of a descriptor, Read posts a READ and waits for it. The
// protocol above (docs/ONE_SIDED_READS.md) asks for no order among the bytes of one Read, which is
// all that such cards guarantee.
#include <cstdint>

#include "common/bytes.h"

namespace ems::fabric {

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
  // Copies `into.size()` bytes from `offset`. They may change meanwhile, and no order is guaranteed
  // among them. Complete when it returns; an acquire fence orders it before later loads.
  virtual void Read(uint64_t offset, MutableBytes into) const = 0;
  // The memory itself, or nullptr when the CPU cannot address it.
  virtual const std::byte* address() const = 0;
};

}  // namespace ems::fabric
