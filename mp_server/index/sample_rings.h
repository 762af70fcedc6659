#pragma once
// The look-ups of sampled keys that the clients on this host settle without the server: each client
// writes them into a ring in its session page.
//
// What is taken is a hash, which may be that of no object; what was found is for the server to say.
// A ring that was written faster than it was read has lost what it held: nothing of it is taken,
// and all of it counts as lost. Pages are written by clients: each word is read once. Bound:
// shm::kSamplesMax words a session and visit.
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
class SampleRings final {
 public:
  using Page = HazardBoard::Page;

  void Add(uint64_t session, Page page);
  void Remove(uint64_t session);
  bool empty() const { return count_.load(std::memory_order_acquire) == 0; }

  struct Taken {
    size_t hashes = 0;  // at the start of `into`, each session's in their order
    uint64_t lost = 0;  // shm::kSamplesMax a session at most: no page is believed to have more
  };
  // What was not taken yet, oldest first, as far as there is room.
  // Cost: one leaf lock; a cache line, often another core's, for each session and 4 hashes.
  Taken Take(std::span<Hash128> into);

 private:
  struct Session {
    uint64_t id = 0;
    Page page;
    uint64_t seen = 0;
  };
  static void TakeFrom(Session* session, std::span<Hash128> into, Taken* taken);

  std::atomic<uint32_t> count_{0};
  Guarded<std::vector<Session>> sessions_;
};

}  // namespace ems::server
