#pragma once
// What a server that holds copies of a slot says of keys that it has no copy of: that is no miss.
#include <span>

#include "mp_server/request_check.h"
#include "proto/data_plane.h"

namespace ems::server {

// Of a read that a copy may do for: misses in slots that are not this server's become kCopyMiss.
// `body` is the request's, `results` one an item. Cost: a pass over the items.
inline void TellCopyMisses(const RequestCheck& check, const wire::FrameHeader& request,
                           ConstBytes body, std::span<wire::ItemResult> results) {
  wire::ItemReader items(request, body);
  for (wire::ItemResult& result : results) {
    const SlotId slot(IsMulti(request.op) ? items.Next().head.slot : request.slot);
    if (result.status == wire::WireStatus::kMiss && !check.Owns(slot))
      result.status = wire::WireStatus::kCopyMiss;
  }
}

}  // namespace ems::server
