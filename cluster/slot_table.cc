#include "cluster/slot_table.h"

#include <algorithm>

namespace ems {

uint32_t SlotTable::CountOf(NodeId node) const {
  return static_cast<uint32_t>(std::count(owners_.begin(), owners_.end(), node));
}

}  // namespace ems
