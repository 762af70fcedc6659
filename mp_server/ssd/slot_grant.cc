#include "mp_server/ssd/slot_grant.h"

#include <fmt/format.h>

#include <array>
#include <charconv>

#include "common/bytes.h"

namespace ems::ssd {

std::string GrantRecord::ToText() const {
  return fmt::format("{} {} {}", view.packed(), history, lineage);
}

Result<GrantRecord> GrantRecord::FromText(const std::string& text) {
  std::array<uint64_t, 3> numbers{};
  const char* at = text.data();
  const char* const end = at + text.size();
  bool good = true;
  for (size_t i = 0; i < numbers.size() && good; ++i) {
    if (i > 0) good = at != end && *at++ == ' ';
    const auto [next, error] = std::from_chars(at, end, numbers[i]);
    good = good && error == std::errc();
    at = next;
  }
  if (good && at == end)
    return GrantRecord{ViewVersion::FromPacked(numbers[0]), numbers[1], numbers[2]};
  return Error(StatusCode::kDataLoss, "\"{}\" is no record of a view", Printable(text));
}

bool SlotGrant::Keeps(const GrantRecord& before, uint16_t slot) const {
  if (before.view == ViewVersion() || view < before.view || !owned[slot]) return false;
  // Epochs never go back, whatever the term: this controller's store is an older copy.
  if (view.epoch() < before.view.epoch()) return false;
  if (history != 0 && before.history != 0)
    return shown && history == before.history && since[slot] <= before.view.epoch();
  return view.epoch() <= before.view.epoch() + 1;
}

std::bitset<kSlotCount> SlotGrant::Kept(const GrantRecord& before) const {
  std::bitset<kSlotCount> kept;
  for (uint16_t slot = 0; slot < kSlotCount; ++slot) kept[slot] = Keeps(before, slot);
  return kept;
}

}  // namespace ems::ssd
