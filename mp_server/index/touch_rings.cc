#include "mp_server/index/touch_rings.h"

#include <algorithm>

#include "common/check.h"

namespace ems::server {

TouchRings::Taken TouchRings::Take(std::span<Hash128> into, size_t sample) {
  Taken taken;
  auto rings = rings_.Lock();
  if (rings->empty()) return taken;
  const size_t share = std::max<size_t>(1, into.size() / rings->size());
  const size_t sample_share = std::max<size_t>(1, sample / rings->size());
  for (Rings::Ring& ring : *rings) {
    const auto rest = into.subspan(taken.hashes);
    if (rest.empty()) break;
    taken.hashes +=
        TakeFrom(&ring, rest.first(std::min(share, rest.size())), sample_share, &taken.written);
  }
  // Where there are more sessions than places, others have their turn.
  if (rings->size() > into.size())
    std::rotate(rings->begin(), rings->begin() + static_cast<ptrdiff_t>(into.size()), rings->end());
  total_.fetch_add(taken.written, std::memory_order_relaxed);
  return taken;
}

size_t TouchRings::TakeFrom(Rings::Ring* ring, std::span<Hash128> into, size_t sample,
                            uint64_t* written) {
  const uint64_t end = ring->written();
  const uint64_t waiting = std::min<uint64_t>(end - ring->seen, shm::kTouchesMax);
  // As long as there is room in the ring the rest waits for the next call. Of a storm of reads a
  // sample is enough to tell hot from cold.
  const bool room = waiting <= shm::kTouchesMax / 2;
  const uint64_t count = room ? std::min<uint64_t>(waiting, into.size()) : waiting;
  const uint64_t most = room ? into.size() : std::min(sample, into.size());
  const uint64_t first = end - waiting;
  ring->seen = first + count;
  *written += count;
  EMS_CHECK(most > 0, "no place for touches");
  const uint64_t step = (count + most - 1) / most;
  size_t taken = 0;
  for (uint64_t i = 0; i < count; i += step) into[taken++] = ring->At(first + i);
  return taken;
}

}  // namespace ems::server
