#pragma once
// A page of the keys that are kept here of a slot, for the owner of its next era: those of one
// namespace after the other, each with what was used last first.
//
// What is kept for an era only gets less, so a walk from the beginning to the end misses nothing.
// A cursor is foreign: whatever it says, it leads to some place of the walk.
#include "mp_server/store/moved_slots.h"
#include "mp_server/store/object_store.h"
#include "proto/kept_page.h"

namespace ems::server {

// Empty, and the last one: nothing is kept for that era, or nothing more. Bound: as `body` says,
// kScanItemsMax keys and half of kScanAnswerBytesMax of them at most. Cost: O(namespaces + keys).
wire::KeptPage ScanKept(const ObjectStore& dram, SlotId slot, const wire::ScanKeptBody& body);

}  // namespace ems::server
