#pragma once
// The stop side of a restart in place: what this process has in DRAM goes to the next one, with
// the record of it (hand_over_record.h), through a store of descriptors.
//
// Invariant: from Seal's begin on no byte of the pool changes. A thread that still wrote there
// would end the process before anything counts. What a client on this host looks at without the
// server (docs/ONE_SIDED_READS.md) stays out, with its whole segment: nobody ever writes there
// again. Bound: one record; 72 bytes an object.
#include <cstdint>
#include <vector>

#include "common/status.h"
#include "mp_server/restart/fd_store.h"
#include "mp_server/restart/hand_over_record.h"
#include "mp_server/store/object_store.h"

namespace ems::server {

// Ends all sharing with clients, before their sessions end: no one-sided read begins after it, and
// none that has begun counts. For good.
void ShutSharing(const ObjectStore& store);

struct HandedOver {
  uint64_t objects = 0;
  uint64_t value_bytes = 0;
  uint64_t segments = 0;
  uint64_t left_segments = 0;  // clients looked at something in them
};

// Makes the pool's memory read-only and puts it, with a record that begins with `head`, into
// `fds`. Before: ShutSharing, and no thread but the caller's uses the store, nor ever will: after
// it the store can be destroyed, and nothing else. Errors: kUnavailable, kResourceExhausted,
// kInternal  nothing is handed over
Result<HandedOver> Seal(const ObjectStore& store, const HandOverHead& head, FdStore* fds);

}  // namespace ems::server
