#include "cluster/slot_history.h"

#include <algorithm>
#include <utility>

namespace ems {

Result<SlotHistory> SlotHistory::Make(uint64_t id, std::vector<uint64_t> since, uint64_t epoch) {
  if (id == 0 || since.size() != kSlotCount ||
      std::any_of(since.begin(), since.end(), [&](uint64_t one) { return one > epoch; })) {
    return Error(StatusCode::kInvalidArgument,
                 "a history {:x} of {} slots at epoch {}: {} are wanted, none of them later", id,
                 since.size(), epoch, kSlotCount);
  }
  SlotHistory history;
  history.id_ = id;
  history.since_ = std::move(since);
  return history;
}

}  // namespace ems
