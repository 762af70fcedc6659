#pragma once
// One sealed memfd of a client, cut into buffers that servers of this host can read.
//
// It grows: pages are made from its start on, as far as they are needed, and servers map that part,
// since in memory with holes they could be made to pay for the pages. What is made stays, as
// servers rely on it. Best fit, 4 KiB-aligned, neighbours coalesce. Invariant: a range of what is
// made is free or in exactly one buffer. Bound: the bytes it was created with.
#include <algorithm>
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
  // Wanted at first: as much for each of 256 clients is what a server maps by default.
  static constexpr uint64_t kFirstBytes = 16 * kMiB;

  // Errors: kInvalidArgument  0 bytes    kResourceExhausted  the machine has no such memory
  static Result<std::shared_ptr<StagingMemory>> Create(uint64_t bytes);

  // Contents are undefined. Cost: O(log buffers), one leaf lock; page faults where memory is new.
  // Errors: kInvalidArgument  0 bytes    kResourceExhausted  no range so long, or no pages
  Result<StagingBuffer> Allocate(uint64_t bytes);
  // The same within the first `end` bytes, of memory that is there; empty where there is no such
  // range. Cost: O(free ranges), one leaf lock.
  StagingBuffer AllocateBelow(uint64_t end, uint64_t bytes);
  // `bytes` as Allocate returned them; called by the buffer that has them.
  void Free(MutableBytes bytes) override;
  // Where `value` lies in the memory; nullopt when not all of it does. Cost: two comparisons.
  std::optional<uint64_t> OffsetOf(ConstBytes value) const;
  const fabric::SharedMemory& memory() const { return *memory_; }

  // All pages before this are there, and stay.
  uint64_t made_bytes();
  // Says that a range of `bytes` was missing: MakeMore is to make it.
  void Want(uint64_t bytes);
  bool wants_more();
  // Makes up to `bytes` of what is wanted. Cost: about 0.7 ms a MiB, several where the machine
  // itself gets memory only then. Errors: kResourceExhausted  the machine has no such memory
  Status MakeMore(uint64_t bytes);

 private:
  struct State {
    uint64_t end = 0;           // of what is made, or being made
    std::set<uint64_t> making;  // where the parts begin that are being made
    uint64_t wanted_end = 0;
    // Free ranges, by offset and by length.
    std::map<uint64_t, uint64_t> by_offset;
    std::set<std::pair<uint64_t, uint64_t>> by_length;
    // Where memory would end if there were a free range of `length` at its end.
    uint64_t EndFor(uint64_t length) const {
      if (by_offset.empty()) return end + length;
      const auto [offset, last] = *by_offset.rbegin();
      return offset + last == end ? std::max(end, offset + length) : end + length;
    }
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
  std::optional<uint64_t> Cut(uint64_t below, uint64_t length);
  uint64_t EndFor(uint64_t length);
  // Makes what is missing up to `end`, and frees it.
  Status MakeTo(uint64_t end);
  static void AddFree(State& state, uint64_t offset, uint64_t length);

  const std::unique_ptr<fabric::SharedMemory> memory_;
  Guarded<State> state_;
};

}  // namespace ems::internal
