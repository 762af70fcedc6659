#pragma once
// One copy of an object of this server's, from a server that holds it: checked, in room for it.
#include <string_view>

#include "common/clock.h"
#include "common/status.h"
#include "mp_server/forward/peer_calls.h"
#include "mp_server/store/tiered_store.h"

namespace ems::server {

struct FetchedCopy {
  bool found = false;
  Hold filling{};             // with found, as the next
  Reservation reservation{};  // empty: there was no room
  uint64_t checksum = 0;
};

struct CopyWanted {
  NamespaceRef ns;
  SlotId slot;
  std::string_view key;
  ViewVersion view;
};

// Blocks up to the deadline. Errors: those of PeerCalls::Call    kDataLoss  it came damaged
Status FetchCopy(PeerCalls* peers, NodeId node, Deadline deadline, PeerCalls::Channels* channels,
                 const CopyWanted& wanted, const TieredNamespace& objects, FetchedCopy* fetched);

}  // namespace ems::server
