#pragma once
// What a server is to offer to whom after a change of view, so that the holders of copies of a slot
// have what is in it. Pure.
//
// A server offers to those that are new among the holders of a slot, if it is the first of those
// that have been holders since before; and, if it has been one, to a new owner. A holder is a
// process: one that has begun anew has nothing. Bound: 800 KiB where views have copies, else none.
#include <array>
#include <bitset>
#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "cluster/dht_view.h"
#include "cluster/slot_copies.h"
#include "common/ids.h"

namespace ems::server {

// Threading: one thread.
class CopyPlan final {
 public:
  // Slots whose objects are to be offered to a node, of namespaces with 2 and with 3 replicas.
  using Targets = std::map<NodeId, std::array<std::bitset<kSlotCount>, SlotCopies::kMost>>;

  // By `view`, after what Settle was called with. What is owned here is offered to each of `missed`
  // that holds copies of it, too. Cost: O(kSlotCount).
  Targets Due(const DhtView& view, NodeId self, const std::set<NodeId>& missed) const;
  // The holders that `view` names have what they are to have.
  void Settle(const DhtView& view);

 private:
  struct Holder {
    NodeId node;
    uint64_t boot_id = 0;
    friend bool operator==(const Holder&, const Holder&) = default;
  };
  // The owner, then those with copies; kNoNode behind the last.
  using Holders = std::array<Holder, 1 + SlotCopies::kMost>;
  static Holders HoldersOf(const DhtView& view, SlotId slot);

  std::vector<Holders> settled_;  // by slot; empty: nobody but owners held anything
};

}  // namespace ems::server
