#include "mp_server/store/moved_slots.h"

#include <algorithm>
#include <chrono>
#include <set>

namespace ems::server {
namespace {

constexpr Duration kLookEvery = std::chrono::seconds(1);

}  // namespace

MovedSlots::MovedSlots(Duration keep_for, const Clock* clock)
    : keep_for_(keep_for),
      clock_(clock),
      filter_(std::make_unique<std::array<std::atomic<uint64_t>, kGroups * kGroupWords>>()) {}

uint64_t MovedSlots::Mixed(NamespaceRef ns, Hash128 hash, uint64_t since) {
  const uint64_t space = uint64_t{ns.id.value()} << 32 | ns.generation;
  return (hash.lo ^ (space * 0x9e3779b97f4a7c15)) + (hash.hi ^ (since * 0xc2b2ae3d27d4eb4f));
}

// The order of these stores and of what is asked under an index shard's lock: who makes the change
// takes that lock after this.
void MovedSlots::SetMark(size_t group, NamespaceRef ns, Hash128 hash, uint64_t since) {
  if (since == kAllEras) groups_[group].all_eras.store(true, std::memory_order_release);
  uint64_t bits = Mixed(ns, hash, since);
  const uint64_t step = (bits >> 32) | 1;
  uint32_t added = 0;
  for (int i = 0; i < kProbes; ++i, bits += step) {
    std::atomic<uint64_t>& word = (*filter_)[group * kGroupWords + bits % kGroupBits / 64];
    const uint64_t bit = uint64_t{1} << (bits % 64);
    if ((word.load(std::memory_order_relaxed) & bit) != 0) continue;
    if ((word.fetch_or(bit, std::memory_order_release) & bit) == 0) ++added;
  }
  if (added == 0) return;
  Group& of = groups_[group];
  const uint32_t before = of.bits.fetch_add(added, std::memory_order_relaxed);
  if (before >= kFullBits || before + added < kFullBits) return;
  of.full.store(true, std::memory_order_release);
  some_full_.store(true, std::memory_order_release);  // Expire closes its slots
}

bool MovedSlots::IsMarked(SlotId slot, NamespaceRef ns, Hash128 hash, uint64_t since) const {
  const size_t group = GroupOf(slot);
  if (IsFull(slot) || HasMark(group, Mixed(ns, hash, since))) return true;
  return groups_[group].all_eras.load(std::memory_order_acquire) &&
         HasMark(group, Mixed(ns, hash, kAllEras));
}

bool MovedSlots::HasMark(size_t group, uint64_t mixed) const {
  const size_t first = group * kGroupWords;
  uint64_t bits = mixed;
  const uint64_t step = (bits >> 32) | 1;
  for (int i = 0; i < kProbes; ++i, bits += step) {
    const uint64_t word =
        (*filter_)[first + bits % kGroupBits / 64].load(std::memory_order_acquire);
    if ((word & uint64_t{1} << (bits % 64)) == 0) return false;
  }
  return true;
}

std::bitset<MovedSlots::kGroups> MovedSlots::Unused(const State& state) const {
  std::bitset<kGroups> unused;
  unused.set();
  for (const auto& [slot, open] : state.open) unused.reset(GroupOf(SlotId(slot)));
  for (const auto& [slot, lost] : state.lost)
    if (lost.before.has_value()) unused.reset(GroupOf(SlotId(slot)));
  return unused;
}

void MovedSlots::Empty(size_t group) {
  for (size_t i = group * kGroupWords; i < (group + 1) * kGroupWords; ++i)
    (*filter_)[i].store(0, std::memory_order_relaxed);
  groups_[group].bits.store(0, std::memory_order_relaxed);
  groups_[group].all_eras.store(false, std::memory_order_relaxed);
  groups_[group].full.store(false, std::memory_order_release);
}

void MovedSlots::Close(State* state, const std::vector<uint16_t>& slots) {
  for (const uint16_t slot : slots) {
    state->open.erase(slot);
    open_since_[slot].store(0, std::memory_order_release);
  }
  open_count_.store(static_cast<uint32_t>(state->open.size()), std::memory_order_release);
}

void MovedSlots::Gain(uint64_t history, const std::vector<uint64_t>& since,
                      const std::bitset<kSlotCount>& owned,
                      const std::map<uint16_t, Origin>& origins) {
  auto state = state_.Lock();
  std::vector<uint16_t> over;  // of what was lost Lose says more, later
  for (const auto& [slot, opened] : state->open) {
    if (owned[slot] && (since.empty() || opened.origin.era != Era{history, since[slot]}))
      over.push_back(slot);
  }
  Close(&*state, over);
  if (origins.empty()) return;
  const std::bitset<kGroups> unused = Unused(*state);
  for (size_t group = 0; group < kGroups; ++group)
    if (unused[group]) Empty(group);
  const TimePoint until = clock_->Now() + keep_for_;
  for (const auto& [slot, origin] : origins) state->open[slot] = {.origin = origin, .until = until};
  open_count_.store(static_cast<uint32_t>(state->open.size()), std::memory_order_release);
  for (const auto& [slot, origin] : origins)
    open_since_[slot].store(origin.era.since, std::memory_order_release);
}

std::vector<MovedSlots::Opened> MovedSlots::opened() {
  std::vector<Opened> all;
  auto state = state_.Lock();
  all.reserve(state->open.size());
  for (const auto& [slot, open] : state->open)
    all.push_back({SlotId(slot), open.origin, open.until});
  return all;
}

bool MovedSlots::Finish(SlotId slot, Era era) {
  auto state = state_.Lock();
  const auto it = state->open.find(slot.value());
  if (it == state->open.end() || it->second.origin.era != era) return false;
  Close(&*state, {slot.value()});
  return true;
}

void MovedSlots::Reach(SlotId slot, Era era, NodeId further) {
  auto state = state_.Lock();
  const auto it = state->open.find(slot.value());
  if (it != state->open.end() && it->second.origin.era == era) it->second.further = further;
}

std::vector<NodeId> MovedSlots::origins() {
  std::set<NodeId> nodes;
  {
    auto state = state_.Lock();
    for (const auto& [slot, open] : state->open) {
      nodes.insert(open.origin.node);
      if (open.further != kNoNode) nodes.insert(open.further);
    }
  }
  return {nodes.begin(), nodes.end()};
}

std::optional<Origin> MovedSlots::OriginOf(SlotId slot) {
  if (!IsOpen(slot)) return std::nullopt;
  auto state = state_.Lock();
  const auto it = state->open.find(slot.value());
  return it == state->open.end() ? std::nullopt : std::optional(it->second.origin);
}

void MovedSlots::Lose(uint64_t history, const std::vector<uint64_t>& since,
                      const std::bitset<kSlotCount>& owned, const std::bitset<kSlotCount>& kept) {
  auto state = state_.Lock();
  const TimePoint until = clock_->Now() + keep_for_;
  for (size_t i = kept._Find_first(); i < kSlotCount; i = kept._Find_next(i)) {
    const auto slot = static_cast<uint16_t>(i);
    Lost lost{.era = {history, since[i]}, .until = until, .before = {}};
    const auto open = state->open.find(slot);
    if (open != state->open.end() && !IsFull(SlotId(slot))) lost.before = open->second.origin;
    state->lost[slot] = lost;
  }
  std::vector<uint16_t> over;
  for (const auto& [slot, opened] : state->open)
    if (!owned[slot]) over.push_back(slot);
  Close(&*state, over);
}

bool MovedSlots::Keeps(SlotId slot, Era era) {
  auto state = state_.Lock();
  const auto it = state->lost.find(slot.value());
  return it != state->lost.end() && it->second.era == era && clock_->Now() < it->second.until;
}

std::optional<Origin> MovedSlots::Before(SlotId slot, Era era) {
  auto state = state_.Lock();
  const auto it = state->lost.find(slot.value());
  return it != state->lost.end() && it->second.era == era ? it->second.before : std::nullopt;
}

std::vector<NodeId> MovedSlots::vouched_for() {
  std::set<NodeId> nodes;
  {
    auto state = state_.Lock();
    for (const auto& [slot, lost] : state->lost)
      if (lost.before) nodes.insert(lost.before->node);
  }
  return {nodes.begin(), nodes.end()};
}

std::optional<Origin> MovedSlots::Untouched(SlotId slot, Era era, NamespaceRef ns, Hash128 hash) {
  const std::optional<Origin> before = Before(slot, era);
  return before && !IsMarked(slot, ns, hash, before->era.since) ? before : std::nullopt;
}

void MovedSlots::CloseFull() {
  some_full_.store(false, std::memory_order_release);  // before looking: one more look, not less
  auto state = state_.Lock();
  std::vector<uint16_t> over;
  for (const auto& [slot, opened] : state->open)
    if (IsFull(SlotId(slot))) over.push_back(slot);
  Close(&*state, over);
  for (auto& [slot, lost] : state->lost)
    if (IsFull(SlotId(slot))) lost.before.reset();
}

std::bitset<kSlotCount> MovedSlots::Expire() {
  if (some_full_.load(std::memory_order_acquire)) CloseFull();
  std::bitset<kSlotCount> gone;
  const TimePoint now = clock_->Now();
  auto state = state_.Lock();
  if (now < state->next_look) return gone;
  state->next_look = now + kLookEvery;
  std::vector<uint16_t> over;
  for (const auto& [slot, opened] : state->open)
    if (opened.until <= now) over.push_back(slot);
  Close(&*state, over);
  std::erase_if(state->lost, [&](const auto& one) {
    const bool over_now = one.second.until <= now;
    if (over_now) gone.set(one.first);
    return over_now;
  });
  return gone;
}

std::bitset<kSlotCount> MovedSlots::kept_slots() {
  std::bitset<kSlotCount> slots;
  auto state = state_.Lock();
  for (const auto& [slot, lost] : state->lost) slots.set(slot);
  return slots;
}

}  // namespace ems::server
