#include "mp_server/kv_events/block_events.h"

#include <algorithm>

namespace ems::kv_events {

BlockEvents::BlockEvents(size_t capacity)
    : mask_(std::bit_ceil(std::max<size_t>(capacity, 2)) - 1),
      cells_(std::make_unique<Cell[]>(mask_ + 1)) {
  for (size_t i = 0; i <= mask_; ++i) cells_[i].turn.store(i, std::memory_order_relaxed);
}

void BlockEvents::Push(const BlockEvent& event) noexcept {
  uint64_t position = tail_.load(std::memory_order_relaxed);
  while (true) {
    Cell& cell = cells_[position & mask_];
    // Acquire: the drainer has read what was here; its partner is the release in Drain.
    const uint64_t turn = cell.turn.load(std::memory_order_acquire);
    if (turn == position) {
      if (!tail_.compare_exchange_weak(position, position + 1, std::memory_order_relaxed)) continue;
      cell.event = event;
      cell.turn.store(position + 1, std::memory_order_release);  // its partner is in Drain
      return;
    }
    if (turn < position) return Lose();  // not read since the last time round
    position = tail_.load(std::memory_order_relaxed);
  }
}

// Stops at an event that is still being written: those behind it come with the next call.
size_t BlockEvents::Drain(size_t most, std::vector<BlockEvent>* out) {
  size_t taken = 0;
  for (; taken < most; ++taken, ++head_) {
    Cell& cell = cells_[head_ & mask_];
    if (cell.turn.load(std::memory_order_acquire) != head_ + 1) break;
    out->push_back(cell.event);
    cell.turn.store(head_ + mask_ + 1, std::memory_order_release);
  }
  return taken;
}

}  // namespace ems::kv_events
