#pragma once
// The calls by which copies come to other servers, and go there again.
//
// A value is compared with its checksums before it is sent: what has changed in memory here is
// dropped here, and gets to nobody. Bound: what the caller gives to one call.
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/ids.h"
#include "common/status.h"
#include "mp_server/forward/peer_calls.h"
#include "mp_server/lease/ownership.h"
#include "mp_server/store/object_pin.h"
#include "proto/data_plane.h"

namespace ems::server {

struct CopyItem {
  SlotId slot;
  std::string key;
  uint32_t idle_ms = 0;  // for how long it has not been used
};

// One result an item; blocks up to the deadline. `values`: of the items of a MultiPut. Errors:
// those of PeerCalls::Call
using CopyResults = Result<std::vector<wire::ItemResult>>;
struct CopyCall {
  wire::Op op = wire::Op::kMultiExists;
  NodeId node;
  NamespaceRef ns;
  ViewVersion view;
  Deadline deadline;
  uint16_t flags = 0;  // further ones
};
CopyResults CallForCopies(PeerCalls* peers, PeerCalls::Channels* channels, const CopyCall& call,
                          std::span<const CopyItem> items, std::span<const ObjectPin> values = {});

// Threading: one thread, but for peers().
class CopyCalls final {
 public:
  CopyCalls(const Ownership* ownership, Duration timeout)
      : ownership_(*ownership), timeout_(timeout) {}
  PeerCalls& peers() { return peers_; }

  // As CallForCopies, up to the timeout.
  // Which of them the node has.
  CopyResults Exist(NodeId node, NamespaceRef ns, std::span<const CopyItem> items) {
    return Call(wire::Op::kMultiExists, node, ns, items, {});
  }
  CopyResults Remove(NodeId node, NamespaceRef ns, std::span<const CopyItem> items) {
    return Call(wire::Op::kMultiRemove, node, ns, items, {});
  }
  // `values`: of the items. `flags`: further ones of the request.
  CopyResults Put(NodeId node, NamespaceRef ns, std::span<const CopyItem> items,
                  std::span<const ObjectPin> values, uint16_t flags = 0) {
    return Call(wire::Op::kMultiPut, node, ns, items, values, flags);
  }

 private:
  CopyResults Call(wire::Op op, NodeId node, NamespaceRef ns, std::span<const CopyItem> items,
                   std::span<const ObjectPin> values, uint16_t flags = 0) {
    const CopyCall call{op, node, ns, ownership_.version(), Deadline::After(timeout_), flags};
    return CallForCopies(&peers_, &channels_, call, items, values);
  }

  const Ownership& ownership_;
  const Duration timeout_;
  PeerCalls peers_;
  PeerCalls::Channels channels_;
};

}  // namespace ems::server
