#pragma once
// One sealed memfd of a client, cut into buffers that servers of this host can read.
//
// Best fit, 4 KiB-aligned, neighbours coalesce. Invariant: a range is free or in exactly one
// buffer. Bound: the bytes it was made with; all pages are made when a server is to read them.
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "common/bytes.h"
#include "common/guarded.h"
#include "common/status.h"
#include "fabric/shm/shm_transport.h"
#include "mp_sdk/staging_buffer.h"

namespace ems::internal {

// Threading: thread-safe.
class StagingMemory final : public StagingOwner,
                            public std::enable_shared_from_this<StagingMemory> {
 public:
  static constexpr uint64_t kUnit = 4 * kKiB;

  // Errors: kInvalidArgument  0 bytes    kResourceExhausted  the machine has no such memory
  static Result<std::shared_ptr<StagingMemory>> Create(uint64_t bytes);

  // Contents are undefined. Cost: O(log buffers), one leaf lock; page faults where memory is new.
  // Errors: kInvalidArgument  0 bytes    kResourceExhausted  no range so long, or no pages
  Result<StagingBuffer> Allocate(uint64_t bytes);
  // `bytes` as Allocate returned them; called by the buffer that has them.
  void Free(MutableBytes bytes) override;
  // Where `value` lies in the memory; nullopt when not all of it does. Cost: two comparisons.
  std::optional<uint64_t> OffsetOf(ConstBytes value) const;
  const fabric::SharedMemory& memory() const { return *memory_; }
  // Makes the pages of a part of it: servers map no memory with holes, which they could be made to
  // pay for. Cost: about 0.7 ms a MiB, several where the machine itself gets memory only then, 0.1
  // ms when they are there. Errors: kResourceExhausted  the machine has no such memory
  Status MakePages(uint64_t offset, uint64_t bytes) const {
    return memory_->Populate(offset, bytes);
  }

 private:
  // Free ranges, by offset and by length.
  struct State {
    std::map<uint64_t, uint64_t> by_offset;
    std::set<std::pair<uint64_t, uint64_t>> by_length;
    void Add(uint64_t offset, uint64_t length) {
      by_offset.emplace(offset, length);
      by_length.emplace(length, offset);
    }
    void Drop(uint64_t offset, uint64_t length) {
      by_offset.erase(offset);
      by_length.erase({length, offset});
    }
  };
  explicit StagingMemory(std::unique_ptr<fabric::SharedMemory> memory);
  std::optional<uint64_t> Cut(uint64_t length);

  const std::unique_ptr<fabric::SharedMemory> memory_;
  Guarded<State> state_;
};

}  // namespace ems::internal
