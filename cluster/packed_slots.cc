#include "cluster/packed_slots.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <tuple>

#include "common/check.h"

namespace ems {
namespace {

void PutVarint(uint64_t value, std::string* out) {
  for (; value >= 0x80; value >>= 7) out->push_back(static_cast<char>(value | 0x80));
  out->push_back(static_cast<char>(value));
}

// Reads varints one after the other.
class Varints final {
 public:
  explicit Varints(std::string_view bytes) : rest_(bytes) {}
  bool empty() const { return rest_.empty(); }

  // Nullopt: the bytes end within a number, or it does not fit or is above `most`.
  std::optional<uint64_t> Take(uint64_t most) {
    uint64_t value = 0;
    for (int shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
      const auto byte = static_cast<uint8_t>(rest_.front());
      rest_.remove_prefix(1);
      const uint64_t bits = byte & 0x7f;
      if (bits << shift >> shift != bits) return std::nullopt;
      value |= bits << shift;
      if ((byte & 0x80) != 0) continue;
      if (value > most) return std::nullopt;
      return value;
    }
    return std::nullopt;
  }

 private:
  std::string_view rest_;
};

// One group behind those in `slots`. False: it is none.
bool TakeGroup(Varints* numbers, std::vector<HeldSlot>* slots) {
  const auto owner = numbers->Take(std::numeric_limits<uint32_t>::max());
  if (!owner.has_value()) return false;
  const auto age = numbers->Take(ViewVersion::kEpochMax);
  if (!age.has_value()) return false;
  const auto count = numbers->Take(kSlotCount - slots->size());
  if (!count.has_value() || *count == 0) return false;
  uint64_t slot = 0;
  for (uint64_t i = 0; i < *count; ++i) {
    const auto gap = numbers->Take(kSlotCount - 1 - slot);
    if (!gap.has_value() || (i > 0 && *gap == 0)) return false;
    slot += *gap;
    slots->push_back(
        {SlotId(static_cast<uint16_t>(slot)), NodeId(static_cast<uint32_t>(*owner)), *age});
  }
  return true;
}

}  // namespace

std::string PackSlots(std::vector<HeldSlot> slots) {
  EMS_CHECK(slots.size() <= kSlotCount, "{} slots are packed", slots.size());
  const auto group = [](const HeldSlot& held) { return std::tuple(held.owner, held.age); };
  std::sort(slots.begin(), slots.end(), [&](const HeldSlot& a, const HeldSlot& b) {
    return std::tuple(group(a), a.slot) < std::tuple(group(b), b.slot);
  });
  std::string packed;
  packed.reserve(3 * slots.size());
  for (auto at = slots.begin(); at != slots.end();) {
    const auto end =
        std::find_if(at, slots.end(), [&](const HeldSlot& s) { return group(s) != group(*at); });
    PutVarint(at->owner.value(), &packed);
    PutVarint(at->age, &packed);
    PutVarint(static_cast<uint64_t>(end - at), &packed);
    for (uint16_t before = 0; at != end; before = at->slot.value(), ++at)
      PutVarint(static_cast<uint64_t>(at->slot.value() - before), &packed);
  }
  return packed;
}

Result<std::vector<HeldSlot>> UnpackSlots(std::string_view packed) {
  std::vector<HeldSlot> slots;
  Varints numbers(packed);
  while (!numbers.empty()) {
    if (!TakeGroup(&numbers, &slots)) {
      return Error(StatusCode::kInvalidArgument, "{} B of packed slots break off behind slot {}",
                   packed.size(), slots.size());
    }
  }
  return slots;
}

}  // namespace ems
