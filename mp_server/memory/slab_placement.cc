#include "mp_server/memory/slab_placement.h"

#include <cstddef>
#include <utility>

#include "proto/shm_layout.h"

namespace ems::server {

SlabPlacement::Laid SlabPlacement::RunOf(const ObjectEntry& owner) {
  auto state = pool_.state_.Lock();
  const bool is_slab = owner.size_class != kRunClass;
  const auto* slab = is_slab ? static_cast<const Slab*>(owner.unit) : nullptr;
  const auto* run = is_slab ? slab->run : static_cast<const PageRuns::Page*>(owner.unit);
  return {run->segment->segment->id, static_cast<uint32_t>(run - run->segment->pages.data()),
          run->run_pages, is_slab ? static_cast<uint32_t>(slab->owners.size()) : 0,
          owner.size_class};
}

PageRuns::Page* SlabPlacement::Place(const Laid& laid) {
  auto state = pool_.state_.Lock();
  const auto segment = state->by_id.find(laid.segment);
  if (segment == state->by_id.end()) return nullptr;
  const bool is_slab = laid.size_class != kRunClass;
  if (is_slab) {
    if (laid.size_class >= SizeClasses::Get().count() || laid.chunks == 0) return nullptr;
    const SizeClass& shape = SizeClasses::Get().at(laid.size_class);
    if (laid.chunks > SizeClasses::ChunksIn(shape, laid.pages)) return nullptr;
  }
  PageRuns::Page* const run = state->runs.Place(segment->second, laid.first_page, laid.pages,
                                                is_slab ? RunKind::kSlab : RunKind::kObject);
  if (run != nullptr && is_slab) SlabPool::CutSlab(*state, run, laid.size_class, laid.chunks);
  return run;
}

// The free list of a slab is made by Settle.
bool SlabPlacement::PlaceIn(PageRuns::Page* run, uint64_t offset, ObjectEntry* owner) {
  auto state = pool_.state_.Lock();
  std::byte* const base = state->runs.Address(run);
  std::byte* const begin = run->segment->segment->memory.bytes().data();
  if (offset < static_cast<uint64_t>(base - begin)) return false;
  const uint64_t at = offset - static_cast<uint64_t>(base - begin);
  if (run->kind == RunKind::kObject) {
    if (run->owner != nullptr || at != 0) return false;
    run->owner = owner;
    owner->size_class = kRunClass;
    owner->unit = run;
    owner->head = base;
    owner->location = shm::Location(run->segment->segment->id, offset);
    state->chunk_bytes += run->run_pages * kPageBytes;
    return true;
  }
  auto* const slab = static_cast<Slab*>(run->owner);
  const SizeClass& shape = SizeClasses::Get().at(slab->size_class);
  const uint64_t step = shape.paged ? kPagedHeadBytes : shape.chunk_bytes;
  if (at % step != 0 || at / step >= slab->owners.size()) return false;
  const auto index = static_cast<uint32_t>(at / step);
  if (slab->owners[index] != nullptr) return false;
  SlabPool::Own(*state, slab, index, owner);
  return true;
}

void SlabPlacement::Settle(PageRuns::Page* run) {
  auto state = pool_.state_.Lock();
  if (run->kind == RunKind::kObject) {
    if (run->owner == nullptr) state->runs.Free(run);
    return;
  }
  auto* const slab = static_cast<Slab*>(run->owner);
  slab->free.clear();
  for (size_t i = slab->owners.size(); i-- > 0;)
    if (slab->owners[i] == nullptr) slab->free.push_back(static_cast<uint32_t>(i));
  if (slab->free.empty()) return SlabPool::Unlist(*state, slab);
  if (slab->used() > 0) return;
  SlabPool::Unlist(*state, slab);
  state->idle_bytes -= slab->owners.size() * SizeClasses::Get().at(slab->size_class).chunk_bytes;
  state->spare.push_back(slab);
  state->runs.Free(std::exchange(slab->run, nullptr));
}

}  // namespace ems::server
