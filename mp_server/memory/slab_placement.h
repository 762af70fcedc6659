#pragma once
// Tells how the memory of a namespace is laid out, and lays it out so again in another process.
//
// Invariant: a pool that is being laid out is used by nobody else; once each run that was placed
// has been settled it is as any other. Bound: what lies in the segments that were added.
#include <compare>
#include <cstdint>

#include "mp_server/memory/slab_pool.h"

namespace ems::server {

// Threading: caller locks.
class SlabPlacement final {
 public:
  // A slab, or the run of one object.
  struct Laid {
    uint32_t segment = 0;  // its number
    uint32_t first_page = 0;
    uint32_t pages = 0;
    uint32_t chunks = 0;  // of a slab
    uint8_t size_class = kRunClass;
    friend auto operator<=>(const Laid&, const Laid&) = default;
  };

  // `pool` must outlive it.
  explicit SlabPlacement(SlabPool* pool) : pool_(*pool) {}

  // Where the memory of `owner` lies.
  Laid RunOf(const ObjectEntry& owner);
  // Lays a run out, in a segment that has been added and has none behind it. nullptr: no such
  // segment, not free, or not a run of this class. Cost: O(its chunks).
  PageRuns::Page* Place(const Laid& laid);
  // Gives `owner` the memory in that run whose header lies at `offset` in the segment: fills in
  // what SlabPool::Allocate does, but the payload of a run. False: there is no chunk, or it is
  // another owner's.
  [[nodiscard]] bool PlaceIn(PageRuns::Page* run, uint64_t offset, ObjectEntry* owner);
  // Of each run that was placed, at the end, but those of an object that has given it back: what
  // nobody owns is free.
  void Settle(PageRuns::Page* run);

 private:
  SlabPool& pool_;
};

}  // namespace ems::server
