#pragma once
// The look-ups of sampled keys that the clients on this host settle without the server: each client
// writes them into a ring in its session page.
//
// What is taken is a hash, which may be that of no object; what was found is for the server to say.
// A ring that was written faster than it was read has lost what it held: nothing of it is taken,
// and all of it counts as lost. Bound: shm::kSamplesMax words a session and visit.
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "common/hash.h"
#include "mp_server/index/session_rings.h"

namespace ems::server {

// Threading: thread-safe.
class SampleRings final {
 public:
  void Add(uint64_t session, HazardBoard::Page page) { rings_.Add(session, std::move(page)); }
  void Remove(uint64_t session) { rings_.Remove(session); }
  bool empty() const { return rings_.empty(); }

  struct Taken {
    size_t hashes = 0;  // at the start of `into`, each session's in their order
    uint64_t lost = 0;  // shm::kSamplesMax a session at most: no page is believed to have more
  };
  // What was not taken yet, oldest first, as far as there is room.
  // Cost: one leaf lock; a cache line, often another core's, for each session and 4 hashes.
  Taken Take(std::span<Hash128> into);

 private:
  using Rings = SessionRings<&shm::SessionPage::sample_count, &shm::SessionPage::samples>;
  static void TakeFrom(Rings::Ring* ring, std::span<Hash128> into, Taken* taken);

  Rings rings_;
};

}  // namespace ems::server
