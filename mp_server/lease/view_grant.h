#pragma once
// A view → what it gives this server: the bridge between cluster and the tiers.
#include "cluster/dht_view.h"
#include "mp_server/ssd/slot_grant.h"

namespace ems::server {

// `self`: this server's id; `lineage`: of its storage. Cost: O(kSlotCount).
ssd::SlotGrant GrantOf(const DhtView& view, NodeId self, uint64_t lineage);

// Whether the view shows a server of this name with another storage, as one that took the name
// while this one was away: it is not for this process. The next one is, or will show who is. One
// that shows `boot_id` is, whatever lineage the controller knows of it.
bool ShowsAnother(const DhtView& view, NodeId self, uint64_t boot_id, uint64_t lineage);

}  // namespace ems::server
