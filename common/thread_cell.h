#pragma once
// A cell for each thread of the process: where it alone writes, so that counting needs neither a
// lock nor an atomic read-modify-write.
//
// Invariant: no two threads that live have the same cell, but for kSharedCell, which all threads
// have that find the others taken. A cell passes to another thread when its own ends. Bound:
// kThreadCells.
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace ems {

inline constexpr size_t kThreadCells = 64;
inline constexpr size_t kSharedCell = kThreadCells - 1;

namespace thread_cell_internal {

inline constexpr uint64_t kShared = uint64_t{1} << kSharedCell;
inline std::atomic<uint64_t> taken{kShared};
// Not the claim's own: it stays readable while a thread's other variables are destroyed.
inline thread_local size_t mine = kSharedCell;

class Claim final {
 public:
  Claim() {
    uint64_t before = taken.load(std::memory_order_relaxed);
    while (~before != 0) {
      const uint64_t bit = ~before & (before + 1);
      // Acquire, with the release below: what the last thread has written here is seen.
      if (taken.compare_exchange_weak(before, before | bit, std::memory_order_acquire,
                                      std::memory_order_relaxed)) {
        mine = static_cast<size_t>(std::countr_zero(bit));
        return;
      }
    }
  }
  ~Claim() {
    if (mine != kSharedCell) taken.fetch_and(~(uint64_t{1} << mine), std::memory_order_release);
    mine = kSharedCell;
  }
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;
};

}  // namespace thread_cell_internal

// That of the calling thread. Cost: a few ns; once a thread an atomic operation.
inline size_t ThreadCell() {
  static thread_local const thread_cell_internal::Claim claim;
  (void)claim;
  return thread_cell_internal::mine;
}

// Adds to a word of the calling thread's cell, which others may read at any time.
inline void AddInCell(size_t cell, std::atomic<uint64_t>* word, uint64_t by) {
  if (cell == kSharedCell) {
    word->fetch_add(by, std::memory_order_relaxed);
  } else {
    word->store(word->load(std::memory_order_relaxed) + by, std::memory_order_relaxed);
  }
}

}  // namespace ems
