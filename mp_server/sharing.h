#pragma once
// What one namespace shares with clients on this host: its shared index, who looks at what, who has
// used what, and the objects that wait for a client to look away.
//
// Invariant: an object in limbo is unlinked, unpinned and named by a session when it was last
// looked at; its memory and its charge stay until it is taken out. Bound: kHazardsMax objects a
// session.
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/guarded.h"
#include "mp_server/object_entry.h"
#include "mp_server/reclaim.h"
#include "mp_server/shared_index.h"
#include "mp_server/touch_rings.h"

namespace ems::server {

// Threading: thread-safe but where stated.
class Sharing final {
 public:
  // Makes the shared index; ok when there is one. From one thread.
  // Errors: those of SharedIndex::Create
  // `all_objects`: what is not in the index is not on this server.
  Status Start(NamespaceRef ns, uint64_t boot_id, bool all_objects);
  // nullptr until Start.
  SharedIndex* index() const { return index_.load(std::memory_order_acquire); }
  TouchRings& touches() { return touches_; }
  // A session, with its page: from now on what it names stays, and what it uses counts.
  void AddSession(uint64_t session, const HazardBoard::Page& page);
  void RemoveSession(uint64_t session);

  // Puts an unlinked, unpinned object aside when a client looks at it; false: nobody does, free it.
  // Cost: without sessions, a fence.
  [[nodiscard]] bool Park(ObjectEntry* entry);
  bool has_parked() const { return parked_bytes_.load(std::memory_order_relaxed) > 0; }
  uint64_t parked_bytes() const { return parked_bytes_.load(std::memory_order_relaxed); }
  // Those that nobody looks at any more; the caller frees them.
  std::vector<ObjectEntry*> TakeUnnamed();
  // Sessions that hold back more than `bytes_max` of parked objects.
  std::vector<uint64_t> SessionsAbove(uint64_t bytes_max);

 private:
  std::unique_ptr<SharedIndex> owned_;
  std::atomic<SharedIndex*> index_{nullptr};
  HazardBoard hazards_;
  TouchRings touches_;
  std::atomic<uint64_t> parked_bytes_{0};
  Guarded<std::vector<ObjectEntry*>> parked_;
};

}  // namespace ems::server
