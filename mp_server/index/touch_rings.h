#pragma once
// The touch rings of the clients on this host: each client writes the objects that it has used into
// a ring in its session page, and the server reads them for its LRU order.
//
// Lossy: an entry that is overwritten before it was read is lost, and a ring that is more than half
// full is sampled, evenly over all of it. Bound: shm::kTouchesMax words a session.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "common/hash.h"
#include "mp_server/index/session_rings.h"

namespace ems::server {

// Threading: thread-safe.
class TouchRings final {
 public:
  void Add(uint64_t session, HazardBoard::Page page) { rings_.Add(session, std::move(page)); }
  void Remove(uint64_t session) { rings_.Remove(session); }
  bool empty() const { return rings_.empty(); }

  struct Taken {
    size_t hashes = 0;     // at the start of `into`, each session's in their order
    uint64_t written = 0;  // uses that these stand for
  };
  // What was not taken yet, oldest first, an equal share of `into` for each session at most; where
  // only a sample is taken, an equal share of `sample`.
  // Cost: one leaf lock; a cache line, often another core's, for each 4 hashes.
  Taken Take(std::span<Hash128> into, size_t sample);
  // Sum of all `written`.
  uint64_t total() const { return total_.load(std::memory_order_relaxed); }

 private:
  using Rings = SessionRings<&shm::SessionPage::touch_count, &shm::SessionPage::touches>;
  static size_t TakeFrom(Rings::Ring* ring, std::span<Hash128> into, size_t sample,
                         uint64_t* written);

  std::atomic<uint64_t> total_{0};
  Rings rings_;
};

}  // namespace ems::server
