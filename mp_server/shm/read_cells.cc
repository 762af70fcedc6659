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

LookupCounts ReadCells::Take(const shm::SessionPage& page) {
  LookupCounts taken;
  const uint32_t end =
      std::min(page.read_cell_end.load(std::memory_order_relaxed), shm::kReadCells);
  for (uint32_t i = 0; i < end; ++i) {
    const shm::ReadCell& cell = page.read_cells[i];
    LookupCounts& seen = seen_[i];
    taken.hits += Grown(cell.hits, kReadsMax, &seen.hits);
    taken.misses += Grown(cell.misses, kReadsMax, &seen.misses);
    taken.bytes += Grown(cell.bytes, kBytesMax, &seen.bytes);
    taken.found += Grown(cell.found, kReadsMax, &seen.found);
    taken.absent += Grown(cell.absent, kReadsMax, &seen.absent);
  }
  return taken;
}

}  // namespace ems::server
