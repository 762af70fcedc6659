#include "cluster/slot_table.h"

#include <algorithm>

namespace ems {

uint32_t SlotTable::CountOf(NodeId node) const {
  return static_cast<uint32_t>(std::count(owners_.begin(), owners_.end(), node));
}

uint32_t SlotTable::CountMoved(const SlotTable& later) const {
  uint32_t moved = 0;
  for (size_t i = 0; i < owners_.size(); ++i)
    if (owners_[i] != later.owners_[i]) ++moved;
  return moved;
}

}  // namespace ems
