#pragma once
// What a view gives this server: the slots that the SSD tier may serve, and whether it is shown at
// all.
#include <bitset>
#include <cstdint>
#include <map>

#include "cluster/dht_view.h"
#include "mp_server/ssd/slot_grant.h"
#include "mp_server/store/copies.h"
#include "mp_server/store/moved_slots.h"

namespace ems::server {

// `self`: this server's id; `lineage`: of its storage. Cost: O(kSlotCount).
ssd::SlotGrant GrantOf(const DhtView& view, NodeId self, uint64_t lineage);

// Whether the view was made for another process under this server's id: one that took the name,
// with other storage, while this one was away. Such a view must not be installed; a later one
// follows, once the controller has decided between the two. A view that shows `boot_id` is this
// process's, whatever lineage the controller knows of it.
bool ShowsAnother(const DhtView& view, NodeId self, uint64_t boot_id, uint64_t lineage);

// Whom to ask for what was in these slots, which `grant` of the view gives, before.
std::map<uint16_t, Origin> OriginsOf(const DhtView& view, const ssd::SlotGrant& grant,
                                     const std::bitset<kSlotCount>& slots);

// The slots of which `self` holds the first, and the second copies.
CopySlots::Columns CopiesOf(const DhtView& view, NodeId self);

}  // namespace ems::server
