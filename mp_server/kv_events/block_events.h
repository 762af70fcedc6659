#pragma once
// A bounded queue of block events, from the threads that link and unlink objects to the thread that
// publishes.
//
// Pushed under the lock of the index's shard, so that events of one block come in the order in
// which they happened. Push takes no lock of its own and never waits: an event that finds the ring
// full is lost and counted, and the publisher announces the gap. Bound: `capacity` events of 32
// bytes.
#include <atomic>
#include <bit>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/hash.h"

namespace ems::kv_events {

enum class Medium : uint8_t { kDram, kSsd };

struct BlockEvent {
  Hash128 hash;  // KeyHash of the object's key
  Medium medium = Medium::kDram;
  bool stored = false;  // else removed
  friend bool operator==(const BlockEvent&, const BlockEvent&) = default;
};

// Threading: Push, Lose and lost are thread-safe; Drain from one thread at a time.
class BlockEvents final {
 public:
  // `capacity` is rounded up to a power of two.
  explicit BlockEvents(size_t capacity);
  BlockEvents(const BlockEvents&) = delete;
  BlockEvents& operator=(const BlockEvents&) = delete;

  // Cost: two atomics; no allocation, no system call, never waits.
  void Push(const BlockEvent& event) noexcept;
  // Counts as if one had been lost: what is pushed does not tell all that happened.
  void Lose() noexcept { lost_.fetch_add(1, std::memory_order_relaxed); }
  // Appends up to `most` events, oldest first; how many.
  size_t Drain(size_t most, std::vector<BlockEvent>* out);
  uint64_t lost() const { return lost_.load(std::memory_order_relaxed); }
  size_t capacity() const { return mask_ + 1; }

 private:
  struct Cell {
    // The position that may be written here next, or that position + 1 once it has been.
    std::atomic<uint64_t> turn{0};
    BlockEvent event;
  };
  const size_t mask_;
  const std::unique_ptr<Cell[]> cells_;
  alignas(64) std::atomic<uint64_t> tail_{0};  // next position to be written
  alignas(64) uint64_t head_ = 0;              // next to be read: the drainer's own
  alignas(64) std::atomic<uint64_t> lost_{0};
};

}  // namespace ems::kv_events
