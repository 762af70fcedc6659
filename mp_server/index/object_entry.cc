#include "mp_server/index/object_entry.h"

#include <new>

#include "common/check.h"

namespace ems::server {

ObjectEntry* EntryPool::Take(uint64_t entries_max) {
  auto state = state_.Lock();
  if (state->taken >= entries_max) return nullptr;
  if (state->free == nullptr) {
    try {
      state->blocks.push_back(std::make_unique<ObjectEntry[]>(kBlock));
    } catch (const std::bad_alloc&) {
      return nullptr;
    }
    for (size_t i = 0; i < kBlock; ++i) {
      ObjectEntry* entry = &state->blocks.back()[i];
      entry->next = state->free;
      state->free = entry;
    }
  }
  ObjectEntry* entry = state->free;
  state->free = entry->next;
  entry->next = nullptr;
  ++state->taken;
  return entry;
}

void EntryPool::Give(ObjectEntry* entry) {
  EMS_CHECK(entry->holds.load(std::memory_order_relaxed) == 0, "entry given back with holds {}",
            entry->holds.load(std::memory_order_relaxed));
  auto state = state_.Lock();
  EMS_CHECK(state->taken > 0, "an entry is given back that was not taken");
  entry->next = state->free;
  state->free = entry;
  --state->taken;
}

uint64_t EntryPool::taken() {
  auto state = state_.Lock();
  return state->taken;
}

}  // namespace ems::server
