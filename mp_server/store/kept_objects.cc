#include "mp_server/store/kept_objects.h"

namespace ems::server {

ObjectEntry* KeptObjects::State::Remove(ObjectEntry* entry) {
  by_hash.erase(entry->hash);
  by_age.erase(AgeOf(*entry));
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
  for (const auto& [hash, entry] : state->by_hash)
    if (slots[entry->slot]) taken.push_back(entry);
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

KeptObjects::Totals KeptObjects::totals() {
  auto state = state_.Lock();
  return {state->by_hash.size(), state->value_bytes};
}

}  // namespace ems::server
