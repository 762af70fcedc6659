#pragma once
// Spreads what many threads write over cache lines, so that they do not wait for each other.
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "common/thread_cell.h"

namespace ems::internal {

inline constexpr size_t kStripes = 32;

// Which stripe the calling thread uses; threads take them in turn.
inline size_t ThreadStripe() {
  static std::atomic<size_t> next{0};
  static thread_local const size_t mine = next.fetch_add(1, std::memory_order_relaxed) % kStripes;
  return mine;
}

// `kCount` counters that are written often and read seldom: each thread's in a cell of its own.
// Threading: thread-safe.
template <size_t kCount>
class StripedCounters final {
 public:
  void Add(size_t which, uint64_t by) {
    if (by == 0) return;
    const size_t cell = ThreadCell();
    AddInCell(cell, &cells_[cell].counts[which], by);
  }
  uint64_t Sum(size_t which) const {
    uint64_t sum = 0;
    for (const Cell& cell : cells_) sum += cell.counts[which].load(std::memory_order_relaxed);
    return sum;
  }

 private:
  struct alignas(64) Cell {
    std::array<std::atomic<uint64_t>, kCount> counts{};
  };
  std::array<Cell, kThreadCells> cells_;
};

}  // namespace ems::internal
