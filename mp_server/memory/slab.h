#pragma once
// The record of one slab: a run of pages cut into chunks of one size class.
//
// Invariant: a chunk number is in `free` exactly when its owner is null. Records are recycled and
// live as long as their pool. Bound: 12 bytes a chunk.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "mp_server/index/object_entry.h"
#include "mp_server/memory/page_runs.h"

namespace ems::server {

// Threading: caller locks.
struct Slab {
  PageRuns::Page* run = nullptr;  // nullptr: the record is spare
  std::byte* base = nullptr;
  std::byte* values = nullptr;  // of a paged slab
  uint8_t size_class = 0;
  bool draining = false;  // hands nothing out any more
  bool listed = false;    // in its class's list of slabs with free chunks
  Slab* prev = nullptr;
  Slab* next = nullptr;
  std::vector<uint32_t> free;        // chunk numbers
  std::vector<ObjectEntry*> owners;  // by chunk number
  size_t used() const { return owners.size() - free.size(); }
};

}  // namespace ems::server
