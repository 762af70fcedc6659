#include "mp_server/memory/slab_pool.h"

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "proto/shm_layout.h"

namespace ems::server {
namespace {

constexpr size_t kSlabsLookedAt = 64;
constexpr size_t kWindowSegments = 32;
constexpr int kWindowTries = 8;
constexpr size_t kSegmentsLookedAt = 256;
constexpr int kSegmentSamples = 64;

uint64_t ChunkBytes(uint8_t size_class) { return SizeClasses::Get().at(size_class).chunk_bytes; }

uint64_t LocationIn(const PageRuns::SegmentPages& segment, const std::byte* head) {
  return shm::Location(segment.segment->id,
                       static_cast<uint64_t>(head - segment.segment->memory.bytes().data()));
}

int64_t TouchOf(const ObjectEntry* entry) {
  return entry->touched_ns.load(std::memory_order_relaxed);
}

}  // namespace

void SlabPool::Add(std::unique_ptr<Segment> segment) {
  auto state = state_.Lock();
  const uint32_t id = segment->id;
  state->runs.Add(std::move(segment));
  state->by_id[id] = state->runs.segments().back().get();
}

std::unique_ptr<Segment> SlabPool::Take(State& state, PageRuns::SegmentPages* segment) {
  const uint32_t id = segment->segment->id;
  const uint64_t count = left_count_.load(std::memory_order_relaxed);
  if (state.left.size() < kLeftMax) state.left.resize(count + 1);
  state.left[count % kLeftMax] = id;
  left_count_.store(count + 1, std::memory_order_release);
  state.by_id.erase(id);
  return state.runs.Take(segment);
}

bool SlabPool::LeftSince(uint64_t* seen, std::vector<uint32_t>* ids) {
  auto state = state_.Lock();
  const uint64_t count = left_count_.load(std::memory_order_relaxed);
  const uint64_t from = std::exchange(*seen, count);
  EMS_CHECK(from <= count, "{} segments seen, {} have left", from, count);
  if (count - from > kLeftMax) return false;
  for (uint64_t i = from; i < count; ++i) ids->push_back(state->left[i % kLeftMax]);
  return true;
}

bool SlabPool::Allocate(const Footprint& footprint, bool short_slab, ObjectEntry* owner) {
  auto state = state_.Lock();
  owner->size_class = footprint.size_class;
  if (footprint.is_run()) {
    PageRuns::Page* run = state->runs.Allocate(footprint.pages, RunKind::kObject);
    if (run == nullptr) return false;
    run->owner = owner;
    owner->unit = run;
    owner->head = state->runs.Address(run);
    owner->payload = owner->head + footprint.head_bytes;
    owner->location = LocationIn(*run->segment, owner->head);
    state->chunk_bytes += footprint.pages * kPageBytes;
    return true;
  }
  Slab* slab = state->partial[footprint.size_class];
  if (slab == nullptr) slab = NewSlab(*state, footprint.size_class, short_slab);
  if (slab == nullptr) return false;
  const uint32_t index = slab->free.back();
  slab->free.pop_back();
  Own(*state, slab, index, owner);
  return true;
}

// Of a chunk that is not among the free ones any more.
void SlabPool::Own(State& state, Slab* slab, uint32_t index, ObjectEntry* owner) {
  const SizeClass& size_class = SizeClasses::Get().at(slab->size_class);
  state.idle_bytes -= size_class.chunk_bytes;
  ++state.used[slab->size_class];
  EMS_CHECK(slab->owners[index] == nullptr, "chunk {} handed out twice", index);
  slab->owners[index] = owner;
  if (slab->free.empty()) Unlist(state, slab);
  owner->size_class = slab->size_class;
  owner->unit = slab;
  owner->unit_index = index;
  owner->head = slab->base + index * (size_class.paged ? kPagedHeadBytes : size_class.chunk_bytes);
  owner->payload = size_class.paged ? slab->values + index * size_class.value_bytes
                                    : owner->head + kObjectHeaderBytes;
  owner->location = LocationIn(*slab->run->segment, owner->head);
  state.chunk_bytes += size_class.chunk_bytes;
}

// A class with few objects gets short slabs, so that many such classes hold little idle memory.
uint32_t SlabPool::SlabPages(const State& state, uint8_t size_class) {
  const SizeClass& shape = SizeClasses::Get().at(size_class);
  const bool few = state.used[size_class] < SizeClasses::ChunksIn(shape, shape.slab_pages);
  return few ? std::min(shape.slab_pages, shape.slab_pages_short) : shape.slab_pages;
}

Slab* SlabPool::NewSlab(State& state, uint8_t size_class, bool short_slab) {
  const SizeClass& shape = SizeClasses::Get().at(size_class);
  const uint32_t wanted = SlabPages(state, size_class);
  PageRuns::Page* run = state.runs.Allocate(wanted, RunKind::kSlab);
  if (run == nullptr && short_slab) run = state.runs.AllocateLongest(wanted, RunKind::kSlab);
  if (run == nullptr) return nullptr;
  if (run->run_pages < shape.slab_pages_min) {
    state.runs.Free(run);
    return nullptr;
  }
  const uint32_t chunks = SizeClasses::ChunksIn(shape, run->run_pages);
  const uint64_t end = shape.paged ? SizeClasses::PagedValuesAt(chunks) + chunks * shape.value_bytes
                                   : chunks * shape.chunk_bytes;
  state.runs.Trim(run, static_cast<uint32_t>(RoundUp(end, kPageBytes) / kPageBytes));
  return CutSlab(state, run, size_class, chunks);
}

Slab* SlabPool::CutSlab(State& state, PageRuns::Page* run, uint8_t size_class, uint32_t chunks) {
  const SizeClass& shape = SizeClasses::Get().at(size_class);
  if (state.spare.empty()) {
    state.slabs.push_back(std::make_unique<Slab>());
    state.spare.push_back(state.slabs.back().get());
  }
  Slab* slab = state.spare.back();
  state.spare.pop_back();
  slab->run = run;
  slab->base = state.runs.Address(run);
  slab->values = slab->base + (shape.paged ? SizeClasses::PagedValuesAt(chunks) : 0);
  slab->size_class = size_class;
  slab->draining = false;
  slab->owners.assign(chunks, nullptr);
  slab->free.resize(chunks);
  for (uint32_t i = 0; i < chunks; ++i) slab->free[i] = chunks - 1 - i;
  run->owner = slab;
  state.idle_bytes += chunks * shape.chunk_bytes;
  List(state, slab);
  return slab;
}

void SlabPool::List(State& state, Slab* slab) {
  Slab*& head = state.partial[slab->size_class];
  slab->prev = nullptr;
  slab->next = head;
  if (head != nullptr) head->prev = slab;
  head = slab;
  slab->listed = true;
}

void SlabPool::Unlist(State& state, Slab* slab) {
  if (!slab->listed) return;
  (slab->prev != nullptr ? slab->prev->next : state.partial[slab->size_class]) = slab->next;
  if (slab->next != nullptr) slab->next->prev = slab->prev;
  slab->listed = false;
}

std::unique_ptr<Segment> SlabPool::Free(ObjectEntry* owner) {
  auto state = state_.Lock();
  PageRuns::Page* run = nullptr;
  if (owner->size_class == kRunClass) {
    run = static_cast<PageRuns::Page*>(owner->unit);
    EMS_CHECK(run->owner == owner, "a run of another owner");
    state->chunk_bytes -= run->run_pages * kPageBytes;
  } else {
    Slab* slab = static_cast<Slab*>(owner->unit);
    EMS_CHECK(slab->owners[owner->unit_index] == owner, "chunk {} is another owner's",
              owner->unit_index);
    slab->owners[owner->unit_index] = nullptr;
    slab->free.push_back(owner->unit_index);
    const uint64_t bytes = ChunkBytes(slab->size_class);
    state->chunk_bytes -= bytes;
    --state->used[slab->size_class];
    if (!slab->draining) state->idle_bytes += bytes;
    if (slab->used() == 0) {
      Unlist(*state, slab);
      EMS_CHECK(!slab->draining || state->draining_slabs > 0, "no slab is draining");
      if (slab->draining) --state->draining_slabs;
      if (!slab->draining) state->idle_bytes -= slab->owners.size() * bytes;
      run = std::exchange(slab->run, nullptr);
      state->spare.push_back(slab);
    } else if (!slab->draining && !slab->listed) {
      List(*state, slab);
    }
  }
  owner->unit = nullptr;
  if (run == nullptr) return nullptr;
  PageRuns::SegmentPages* segment = run->segment;
  state->runs.Free(run);
  if (!segment->draining || !segment->empty()) return nullptr;
  return Take(*state, segment);
}

SlabPool::Supply SlabPool::SupplyOf(const Footprint& footprint, uint32_t run_pages) {
  auto state = state_.Lock();
  Supply supply;
  supply.pages = state->runs.pages();
  supply.free_pages = state->runs.free_pages();
  supply.idle_bytes = state->idle_bytes;
  supply.has_run = run_pages == 0 || state->runs.Has(run_pages);
  supply.fits =
      footprint.is_run()
          ? state->runs.Has(footprint.pages)
          : state->partial[footprint.size_class] != nullptr ||
                state->runs.Has(SizeClasses::Get().at(footprint.size_class).slab_pages_short);
  return supply;
}

void SlabPool::DrainSlab(State& state, Slab* slab, std::vector<Victim>* victims) {
  EMS_CHECK(!slab->draining, "a slab is drained twice");
  Unlist(state, slab);
  slab->draining = true;
  ++state.draining_slabs;
  state.idle_bytes -= slab->free.size() * ChunkBytes(slab->size_class);
  for (ObjectEntry* owner : slab->owners) {
    if (owner != nullptr) victims->push_back(MakeVictim(owner));
  }
}

void SlabPool::DrainRun(State& state, PageRuns::Page* run, std::vector<Victim>* victims) {
  if (run->kind == RunKind::kSlab && !static_cast<Slab*>(run->owner)->draining)
    DrainSlab(state, static_cast<Slab*>(run->owner), victims);
  if (run->kind == RunKind::kObject)
    victims->push_back(MakeVictim(static_cast<ObjectEntry*>(run->owner)));
}

void SlabPool::DrainRuns(State& state, PageRuns::Page* first, const PageRuns::Page* last,
                         std::vector<Victim>* victims) {
  for (PageRuns::Page* run = first;; run = PageRuns::NextRun(run)) {
    DrainRun(state, run, victims);
    if (run == last) return;
  }
}

bool SlabPool::DrainNear(uint32_t pages, Ages ages, std::vector<Victim>* victims) {
  auto state = state_.Lock();
  const Window window = state->search.Find(state->runs, state->slabs, pages, ages);
  if (window.first == nullptr) return false;
  DrainRuns(*state, window.first, window.last, victims);
  return true;
}

bool SlabPool::DrainSomeSlab(uint32_t pages_min, std::vector<Victim>* victims) {
  auto state = state_.Lock();
  const size_t count = state->slabs.size();
  for (size_t i = 0; i < std::min(count, kSlabsLookedAt); ++i) {
    Slab* slab = state->slabs[state->slab_cursor++ % count].get();
    if (slab->run == nullptr || slab->draining || slab->run->run_pages < pages_min ||
        !WindowSearch::IsIdle(*slab))
      continue;
    DrainSlab(*state, slab, victims);
    return true;
  }
  return false;
}

// Two ends move over the units; a blocked one restarts the window.
SlabPool::Units SlabPool::BestOfUnits(const State& state, uint32_t pages, size_t* first,
                                      size_t* last) {
  Units best;
  uint64_t length = 0, cost = 0;
  size_t from = 0;
  for (size_t to = 0; to < state.units.size(); ++to) {
    const Unit& unit = state.units[to];
    if (unit.blocked) {
      length = cost = 0;
      from = to + 1;
      continue;
    }
    length += unit.run->run_pages;
    cost += unit.cost_bytes;
    while (length - state.units[from].run->run_pages >= pages) {
      length -= state.units[from].run->run_pages;
      cost -= state.units[from].cost_bytes;
      ++from;
    }
    if (length >= pages && cost < best.cost_bytes) {
      best = {cost, state.units[from].run, unit.run};
      *first = from;
      *last = to;
    }
  }
  return best;
}

// Looking for pins costs a look at every object, so it is done for the window that would win, and
// again if it is blocked.
SlabPool::Units SlabPool::CheapestWindow(State& state, PageRuns::SegmentPages* segment,
                                         uint32_t pages) {
  state.units.clear();
  for (auto* run = PageRuns::FirstRun(segment); run != nullptr; run = PageRuns::NextRun(run)) {
    Unit unit{run, 0, false};
    if (run->kind == RunKind::kObject) unit.cost_bytes = run->run_pages * kPageBytes;
    if (run->kind == RunKind::kSlab) {
      const auto* slab = static_cast<const Slab*>(run->owner);
      unit.cost_bytes = slab->used() * ChunkBytes(slab->size_class);
    }
    state.units.push_back(unit);
  }
  for (int i = 0; i < kWindowTries; ++i) {
    size_t first = 0, last = 0;
    const Units window = BestOfUnits(state, pages, &first, &last);
    if (window.first == nullptr) return {};
    bool blocked = false;
    for (size_t at = first; at <= last; ++at) {
      state.units[at].blocked = WindowSearch::IsBlocked(state.units[at].run);
      blocked |= state.units[at].blocked;
    }
    if (!blocked) return window;
  }
  return {};
}

bool SlabPool::DrainWindow(uint32_t pages, std::vector<Victim>* victims) {
  auto state = state_.Lock();
  const auto& segments = state->runs.segments();
  Units best;
  for (size_t i = 0; i < std::min(segments.size(), kWindowSegments); ++i) {
    PageRuns::SegmentPages* segment = segments[state->segment_cursor++ % segments.size()].get();
    if (segment->draining || segment->pages.size() < pages) continue;
    const Units window = CheapestWindow(*state, segment, pages);
    if (window.cost_bytes < best.cost_bytes) best = window;
  }
  if (best.first == nullptr) return false;
  DrainRuns(*state, best.first, best.last, victims);
  return true;
}

// Mean of one object of each of up to 64 runs; false when one of them is held.
bool SlabPool::SegmentTouch(PageRuns::SegmentPages* segment, int64_t* touched_ns) {
  int64_t sum = 0, count = 0;
  int looked = 0;
  for (auto* run = PageRuns::FirstRun(segment); run != nullptr && looked < kSegmentSamples;
       run = PageRuns::NextRun(run), ++looked) {
    const ObjectEntry* owner = nullptr;
    if (run->kind == RunKind::kObject) owner = static_cast<const ObjectEntry*>(run->owner);
    if (run->kind == RunKind::kSlab) {
      const auto& owners = static_cast<const Slab*>(run->owner)->owners;
      const auto it = std::find_if(owners.begin(), owners.end(),
                                   [](const ObjectEntry* o) { return o != nullptr; });
      if (it != owners.end()) owner = *it;
    }
    if (owner == nullptr) continue;
    if (!owner->evictable()) return false;
    sum += TouchOf(owner);
    ++count;
  }
  *touched_ns = count == 0 ? INT64_MIN : sum / count;  // empty: the first to go
  return true;
}

bool SlabPool::DrainSegment(std::vector<Victim>* victims, std::unique_ptr<Segment>* empty) {
  auto state = state_.Lock();
  const auto& segments = state->runs.segments();
  PageRuns::SegmentPages* coldest = nullptr;
  int64_t coldest_touch = 0;
  for (size_t i = 0; i < std::min(segments.size(), kSegmentsLookedAt); ++i) {
    PageRuns::SegmentPages* segment = segments[state->segment_cursor++ % segments.size()].get();
    int64_t touch = 0;
    if (segment->draining || !SegmentTouch(segment, &touch)) continue;
    if (coldest != nullptr && touch >= coldest_touch) continue;
    coldest = segment;
    coldest_touch = touch;
  }
  if (coldest == nullptr) return false;
  state->runs.Drain(coldest);
  for (auto* run = PageRuns::FirstRun(coldest); run != nullptr; run = PageRuns::NextRun(run)) {
    DrainRun(*state, run, victims);
  }
  if (coldest->empty()) *empty = Take(*state, coldest);
  return true;
}

std::vector<std::unique_ptr<Segment>> SlabPool::TakeEmpty(size_t keep) {
  std::vector<std::unique_ptr<Segment>> taken;
  auto state = state_.Lock();
  std::vector<PageRuns::SegmentPages*> empty;
  for (const auto& segment : state->runs.segments()) {
    if (segment->empty()) empty.push_back(segment.get());
  }
  for (size_t i = keep; i < empty.size(); ++i) taken.push_back(Take(*state, empty[i]));
  return taken;
}

void SlabPool::Leftovers(size_t count, std::vector<Victim>* victims) {
  constexpr size_t kSlabsMax = 4096;
  auto state = state_.Lock();
  for (size_t i = 0; state->draining_slabs > 0 && i < std::min(state->slabs.size(), kSlabsMax);
       ++i) {
    const Slab& slab = *state->slabs[state->slab_cursor++ % state->slabs.size()];
    if (slab.run == nullptr || !slab.draining) continue;
    for (ObjectEntry* owner : slab.owners) {
      if (owner != nullptr) victims->push_back(MakeVictim(owner));
    }
    if (victims->size() >= count) return;
  }
  for (const auto& segment : state->runs.segments()) {
    if (!segment->draining) continue;
    for (auto* run = PageRuns::FirstRun(segment.get()); run != nullptr;
         run = PageRuns::NextRun(run)) {
      if (run->kind == RunKind::kObject)
        victims->push_back(MakeVictim(static_cast<ObjectEntry*>(run->owner)));
    }
    if (victims->size() >= count) return;
  }
}

void SlabPool::DrainAll() {
  std::vector<Victim> victims;  // go by themselves: the namespace is closed
  auto state = state_.Lock();
  for (const auto& segment : state->runs.segments()) state->runs.Drain(segment.get());
  for (const auto& slab : state->slabs) {
    if (slab->run == nullptr) continue;
    if (!slab->draining) DrainSlab(*state, slab.get(), &victims);
  }
}

bool SlabPool::HasSegmentOf(uint64_t bytes) {
  auto state = state_.Lock();
  const auto& segments = state->runs.segments();
  return std::any_of(segments.begin(), segments.end(), [&](const auto& segment) {
    return !segment->draining && segment->segment->size_bytes() >= bytes;
  });
}

Result<SlabPool::Opened> SlabPool::OpenSegment(uint32_t id) {
  auto state = state_.Lock();
  const auto found = state->by_id.find(id);
  if (found == state->by_id.end()) return Error(StatusCode::kNotFound, "no segment {}", id);
  const Segment& segment = *found->second->segment;
  return Opened{segment.read_only, segment.size_bytes()};
}

std::vector<const Segment*> SlabPool::Segments() {
  auto state = state_.Lock();
  std::vector<const Segment*> all;
  for (const auto& segment : state->runs.segments()) all.push_back(segment->segment.get());
  return all;
}

std::vector<uint32_t> SlabPool::SegmentIds() {
  std::vector<uint32_t> ids;
  for (const Segment* segment : Segments()) ids.push_back(segment->id);
  return ids;
}

SlabPool::Stats SlabPool::stats() {
  auto state = state_.Lock();
  Stats stats;
  for (const auto& segment : state->runs.segments())
    stats.segment_bytes += segment->segment->size_bytes();
  stats.kept_bytes = state->runs.pages() * kPageBytes;
  stats.segments = state->runs.segments().size();
  stats.chunk_bytes = state->chunk_bytes;
  return stats;
}

}  // namespace ems::server
