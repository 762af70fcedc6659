#include "mp_server/shm/read_cells.h"

#include <algorithm>
#include <utility>

namespace ems::server {
namespace {

uint64_t Grown(const std::atomic<uint64_t>& word, uint64_t most, uint64_t* seen) {
  const uint64_t now = word.load(std::memory_order_relaxed);
  const uint64_t before = std::exchange(*seen, now);
  return now > before ? std::min(now - before, most) : 0;
}

}  // namespace

LookupCounts ReadCells::Take(const shm::SessionPage& page, Duration elapsed) {
  const auto ms =
      std::chrono::ceil<std::chrono::milliseconds>(std::min<Duration>(elapsed, kLookMax));
  const auto looked = static_cast<uint64_t>(std::max<int64_t>(ms.count(), 1));
  const uint64_t reads_max = looked * kReadsMax;
  const uint64_t bytes_max = looked * kBytesMax;
  LookupCounts taken;
  const uint32_t end =
      std::min(page.read_cell_end.load(std::memory_order_relaxed), shm::kReadCells);
  for (uint32_t i = 0; i < end; ++i) {
    const shm::ReadCell& cell = page.read_cells[i];
    LookupCounts& seen = seen_[i];
    taken.hits += Grown(cell.hits, reads_max, &seen.hits);
    taken.misses += Grown(cell.misses, reads_max, &seen.misses);
    taken.bytes += Grown(cell.bytes, bytes_max, &seen.bytes);
    taken.found += Grown(cell.found, reads_max, &seen.found);
    taken.absent += Grown(cell.absent, reads_max, &seen.absent);
  }
  return taken;
}

}  // namespace ems::server
