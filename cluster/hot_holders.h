#pragma once
// Which servers get copies of an object that is hot: the same ones for its owner, which sends the
// copies, and for clients, which ask for them, as long as both have one view.
//
// The nodes that follow the key's place in the list of the view's nodes, without the owner: copies
// of different hot keys lie on different servers. No table is needed, as copies live for seconds.
#include <array>
#include <cstddef>
#include <cstdint>

#include "cluster/dht_view.h"
#include "common/ids.h"

namespace ems {

struct HotHolders {
  static constexpr size_t kMost = 3;
  std::array<NodeId, kMost> nodes{};  // kNoNode behind the last one

  // `hash`: Hash128::lo of the key's. Cost: O(1).
  static HotHolders Of(const DhtView& view, SlotId slot, uint64_t hash) {
    HotHolders holders;
    const NodeId owner = view.OwnerId(slot);
    const size_t count = view.nodes().size();
    size_t found = 0;
    for (size_t i = 0; i < count && i <= kMost && found < kMost; ++i) {
      const NodeId node = view.nodes()[(hash + i) % count].id;
      if (node != owner) holders.nodes[found++] = node;
    }
    return holders;
  }
};

}  // namespace ems
