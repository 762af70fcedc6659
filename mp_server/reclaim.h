#pragma once
// Which objects clients are looking at: the hazard slots of the sessions of one namespace.
//
// An object that is unlinked and no longer pinned may be freed once no session names it. Whoever
// unlinked it calls IsNamed, which puts a full fence between the unlinking and the look; a client
// stores its hazard, a full fence, and looks whether the object is still linked: one of the two
// sees the other. Session pages are written by clients: each word is read once and nothing is
// believed but that it may be a generation.
//
// Bound: kHazardsMax words a session.
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/guarded.h"
#include "fabric/shm_segment.h"
#include "proto/shm_layout.h"

namespace ems::server {

// Threading: thread-safe.
class HazardBoard final {
 public:
  using Page = std::shared_ptr<const fabric::ShmSegment>;

  void Add(uint64_t session, Page page);
  void Remove(uint64_t session);
  bool empty() const { return count_.load(std::memory_order_acquire) == 0; }

  // Whether a session names the use `generation`. Cost: a fence; with sessions, one leaf lock and
  // the slots that they have ever used.
  bool IsNamed(uint64_t generation);

  struct Hazard {
    uint64_t generation = 0;
    uint64_t session = 0;
    friend bool operator<(const Hazard& a, const Hazard& b) { return a.generation < b.generation; }
  };
  // All hazards, by generation, after a fence: for looking at many objects at once.
  std::vector<Hazard> Collect();

 private:
  struct Session {
    uint64_t id = 0;
    Page page;
  };
  std::atomic<uint32_t> count_{0};
  Guarded<std::vector<Session>> sessions_;
};

}  // namespace ems::server
