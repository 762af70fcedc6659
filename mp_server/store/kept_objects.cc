#include "mp_server/store/kept_objects.h"

namespace ems::server {

ObjectEntry* KeptObjects::State::Remove(ObjectEntry* entry) {
  by_hash.erase(entry->hash);
  by_age.erase(AgeOf(*entry));
  const auto slot = by_slot.find(entry->slot);
  slot->second.erase(AgeOf(*entry));
  if (slot->second.empty()) by_slot.erase(slot);
  value_bytes -= entry->value_bytes;
  return entry;
}

ObjectEntry* KeptObjects::Add(ObjectEntry* entry) {
  auto state = state_.Lock();
  const auto there = state->by_hash.find(entry->hash);
  ObjectEntry* const before =
      there == state->by_hash.end() ? nullptr : state->Remove(there->second);
  state->by_hash.emplace(entry->hash, entry);
  state->by_age.emplace(AgeOf(*entry), entry);
  state->by_slot[entry->slot].emplace(AgeOf(*entry), entry);
  state->value_bytes += entry->value_bytes;
  return before;
}

ObjectEntry* KeptObjects::Find(Hash128 hash, std::string_view key) {
  auto state = state_.Lock();
  const auto there = state->by_hash.find(hash);
  if (there == state->by_hash.end() || there->second->key() != key) return nullptr;
  there->second->holds.fetch_add(1, std::memory_order_relaxed);
  return there->second;
}

ObjectEntry* KeptObjects::TakeColdest() {
  auto state = state_.Lock();
  return state->by_age.empty() ? nullptr : state->Remove(state->by_age.begin()->second);
}

int64_t KeptObjects::ColdestTouch() {
  auto state = state_.Lock();
  return state->by_age.empty() ? EvictionPolicy::kNever : state->by_age.begin()->first.first;
}

ObjectEntry* KeptObjects::Take(const Victim& victim) {
  auto state = state_.Lock();
  const auto there = state->by_hash.find(victim.hash);
  if (there == state->by_hash.end() || there->second != victim.entry ||
      victim.entry->generation != victim.generation)
    return nullptr;
  return state->Remove(victim.entry);
}

std::vector<ObjectEntry*> KeptObjects::TakeSlots(const std::bitset<kSlotCount>& slots) {
  std::vector<ObjectEntry*> taken;
  auto state = state_.Lock();
  for (const auto& [slot, entries] : state->by_slot) {
    if (!slots[slot]) continue;
    for (const auto& [age, entry] : entries) taken.push_back(entry);
  }
  for (ObjectEntry* entry : taken) state->Remove(entry);
  return taken;
}

std::vector<ObjectEntry*> KeptObjects::TakeAll() {
  std::vector<ObjectEntry*> taken;
  auto state = state_.Lock();
  for (const auto& [hash, entry] : state->by_hash) taken.push_back(entry);
  *state = State();
  return taken;
}

bool KeptObjects::ListSlot(SlotId slot, Age below, size_t keys_max, uint64_t bytes_max,
                           std::vector<Listed>* listed) {
  uint64_t bytes = 0;
  size_t looked_at = 0;
  auto state = state_.Lock();
  const auto found = state->by_slot.find(slot.value());
  if (found == state->by_slot.end()) return true;
  const auto& entries = found->second;
  for (auto it = entries.lower_bound(below); it != entries.begin();) {
    if (looked_at++ >= keys_max || bytes >= bytes_max) return false;
    const ObjectEntry& entry = *(--it)->second;
    bytes += entry.key_bytes;
    listed->push_back({std::string(entry.key()), entry.value_bytes, it->first});
  }
  return true;
}

KeptObjects::Totals KeptObjects::totals() {
  auto state = state_.Lock();
  return {state->by_hash.size(), state->value_bytes};
}

}  // namespace ems::server
