#pragma once
// The interface through which a namespace gets more memory.
#include <cstdint>
#include <memory>

#include "common/status.h"
#include "mp_server/memory/segment_pool.h"

namespace ems::server {

class RoomMaker;

// Decides between namespaces. Threading: thread-safe.
class SegmentSource {
 public:
  virtual ~SegmentSource() = default;
  // Errors: kUnavailable  it is being prepared: better wait than evict    kResourceExhausted  evict
  // your own
  virtual Result<std::unique_ptr<Segment>> Acquire(RoomMaker* asker, uint64_t bytes_min) = 0;
  // Objects in memory that is to be emptied wait to be written to another tier: it is time to.
  // Never blocks.
  virtual void HurryWrites() = 0;
};

}  // namespace ems::server
