#include "mp_server/index/sample_rings.h"

#include <algorithm>

namespace ems::server {

SampleRings::Taken SampleRings::Take(std::span<Hash128> into) {
  Taken taken;
  auto rings = rings_.Lock();
  for (Rings::Ring& ring : *rings) TakeFrom(&ring, into.subspan(taken.hashes), &taken);
  return taken;
}

void SampleRings::TakeFrom(Rings::Ring* ring, std::span<Hash128> into, Taken* taken) {
  const uint64_t end = ring->written();
  const uint64_t waiting = end - ring->seen;
  if (waiting > shm::kSamplesMax) {
    ring->seen = end;
    taken->lost += shm::kSamplesMax;
    return;
  }
  const uint64_t count = std::min<uint64_t>(waiting, into.size());
  for (uint64_t i = 0; i < count; ++i) into[i] = ring->At(ring->seen++);
  taken->hashes += count;
}

}  // namespace ems::server
