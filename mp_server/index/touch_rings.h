#pragma once
// The touch rings of the clients on this host: each client writes the objects that it has used into
// a ring in its session page, and the server reads them for its LRU order.
//
// Lossy: an entry that is overwritten before it was read is lost, and a ring that is more than half
// full is sampled, evenly over all of it. Pages are written by clients: each word is read once, and
// a hash may be that of no object. Bound: shm::kTouchesMax words a session.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/guarded.h"
#include "common/hash.h"
#include "mp_server/index/reclaim.h"

namespace ems::server {

// Threading: thread-safe.
class TouchRings final {
 public:
  using Page = HazardBoard::Page;

  void Add(uint64_t session, Page page);
  void Remove(uint64_t session);
  bool empty() const { return count_.load(std::memory_order_acquire) == 0; }

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
  struct Session {
    uint64_t id = 0;
    Page page;
    uint64_t seen = 0;
  };
  static size_t TakeFrom(Session* session, std::span<Hash128> into, size_t sample,
                         uint64_t* written);

  std::atomic<uint32_t> count_{0};
  std::atomic<uint64_t> total_{0};
  Guarded<std::vector<Session>> sessions_;
};

}  // namespace ems::server
