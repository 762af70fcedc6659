#include "cluster/slot_copies.h"

#include <algorithm>
#include <utility>

#include "cluster/packed_slots.h"
#include "common/check.h"
#include "common/hash.h"

namespace ems {

void SlotCopies::Set(SlotId slot, std::span<const NodeId> holders) {
  EMS_CHECK(holders.size() <= kMost && slot.value() < kSlotCount, "{} copies of slot {}",
            holders.size(), slot.value());
  if (holders_.empty() && holders.empty()) return;
  holders_.resize(kSlotCount);
  Holders& all = holders_[slot.value()];
  all = {};
  std::ranges::copy(holders, all.begin());
}

uint64_t SlotCopies::Checksum(ViewVersion version) const {
  if (holders_.empty()) return 0;
  Hash64Stream hash;
  const uint64_t packed = version.packed();
  hash.Update(std::as_bytes(std::span(&packed, 1)));
  hash.Update(std::as_bytes(std::span(holders_)));
  return std::max<uint64_t>(hash.Digest(), 1);
}

std::string SlotCopies::PackColumn(size_t column, const SlotCopies& base) const {
  std::vector<HeldSlot> held;
  for (size_t i = 0; i < kSlotCount; ++i) {
    const NodeId node = At(i, column);
    if (node != base.At(i, column)) held.push_back({SlotId(static_cast<uint16_t>(i)), node, 0});
  }
  return PackSlots(std::move(held));
}

Status SlotCopies::OverlayColumn(size_t column, std::string_view packed) {
  EMS_ASSIGN_OR_RETURN(const std::vector<HeldSlot> held, UnpackSlots(packed));
  if (!held.empty()) holders_.resize(kSlotCount);
  for (const HeldSlot& one : held) holders_[one.slot.value()][column] = one.owner;
  return OkStatus();
}

}  // namespace ems
