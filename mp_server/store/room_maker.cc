#include "mp_server/store/room_maker.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include "common/check.h"

namespace ems::server {
namespace {

constexpr int kQuotaEvictionsMax = 1 << 20;
constexpr uint64_t kTrimMax = 4096;
constexpr uint64_t kObjectsMin = 4096;
constexpr uint64_t kBytesAnObject = 512;
constexpr uint64_t kLooseShare = 28;  // free memory up to a twenty-eighth: evict the coldest
constexpr uint64_t kAheadShare = 32;  // the longest run that is kept free: this part of all pages
constexpr int kAheadSteps = 64;       // what one Publish frees at most
constexpr uint32_t kRememberPuts = 256;
constexpr Duration kAskEvery = std::chrono::milliseconds(1);
constexpr Duration kFreshenEvery = std::chrono::milliseconds(1);
constexpr int kFreshenRounds = 4;
constexpr size_t kMarkedStep = 16;
constexpr size_t kKeptStep = 16;  // objects of lost slots that go at a time
constexpr size_t kKeptMost = 4096;
constexpr size_t kLeftoversMax = 1024;

Status NoRoom(uint64_t value_bytes, std::string_view why) {
  return Error(StatusCode::kResourceExhausted, "no room for a value of {}: {}; try again shortly",
               FormatBytes(value_bytes), why);
}

bool IsTight(const SlabPool::Supply& supply) {
  return supply.free_bytes() * kLooseShare < supply.pages * kPageBytes;
}

}  // namespace

RoomMaker::RoomMaker(NamespaceObjects* objects, SegmentPool* pool, SegmentSource* source,
                     const Clock* clock)
    : objects_(objects), pool_(pool), source_(source), clock_(clock) {
  EMS_CHECK(pool != nullptr && source != nullptr, "namespace {}: no source of memory",
            objects->name());
}

Result<ObjectEntry*> RoomMaker::Take(const Wanted& wanted) {
  Effort effort;
  EMS_RETURN_IF_ERROR(Charge(wanted.value_bytes, &effort));
  Result<ObjectEntry*> taken = TakeEntry(&effort);
  if (!taken.ok()) {
    objects_->quota().Refund(wanted.value_bytes);
    return taken;
  }
  ObjectEntry* entry = *taken;
  entry->hash = wanted.hash;
  entry->generation = wanted.generation;
  entry->value_bytes = wanted.value_bytes;
  entry->slot = wanted.slot;
  entry->holds.store(1, std::memory_order_relaxed);
  if (Status memory = TakeMemory(wanted.footprint, entry, &effort); !memory.ok()) {
    entry->holds.store(0, std::memory_order_relaxed);
    objects_->entries().Give(entry);
    objects_->quota().Refund(wanted.value_bytes);
    return memory;
  }
  return entry;
}

uint64_t RoomMaker::memory_bytes() const {
  const uint64_t limit = objects_->quota().limit();
  return limit == 0 ? pool_->bytes_max() : std::min(limit, pool_->bytes_max());
}

uint64_t RoomMaker::objects_max() const {
  const uint64_t limit = objects_->quota().limit();
  const uint64_t bytes = limit == 0 ? pool_->bytes_max() : limit;
  return std::max(kObjectsMin, bytes / kBytesAnObject);
}

int64_t RoomMaker::excess_bytes() {
  return static_cast<int64_t>(objects_->slabs().stats().kept_bytes) -
         static_cast<int64_t>(objects_->quota().reserved());
}

// At the most objects the coldest goes, as at the most bytes.
Result<ObjectEntry*> RoomMaker::TakeEntry(Effort* effort) {
  const uint64_t most = objects_max();
  EntryPool& entries = objects_->entries();
  while (true) {
    if (ObjectEntry* entry = entries.Take(most); entry != nullptr) return entry;
    if (entries.taken() < most)
      return Error(StatusCode::kResourceExhausted, "no memory for an index entry");
    if (EvictKept(objects_, 1)) continue;
    if (effort->rounds_left-- <= 0 || !EvictSome(ObjectIndex::kAnyClass, &effort->skips_left)) {
      return Error(StatusCode::kResourceExhausted,
                   "namespace {} has {} of {} objects here, one for each {} of its memory, and all "
                   "are in use; try again shortly",
                   objects_->name(), entries.taken(), most, FormatBytes(kBytesAnObject));
    }
    count_evictions_.fetch_add(1, std::memory_order_relaxed);
  }
}

// Evicts first and charges then, so that use never passes the quota.
Status RoomMaker::Charge(uint64_t value_bytes, Effort* effort) {
  for (int i = 0; i < kQuotaEvictionsMax; ++i) {
    if (objects_->quota().TryCharge(value_bytes)) return OkStatus();
    if (objects_->FreeRetiredForRoom()) continue;
    FreshenOrder();
    if (!EvictSome(ObjectIndex::kAnyClass, &effort->skips_left)) break;
  }
  if (objects_->quota().TryCharge(value_bytes)) return OkStatus();
  return NoRoom(value_bytes, "what fills the quota is in use");
}

Status RoomMaker::TakeMemory(const Footprint& footprint, ObjectEntry* entry, Effort* effort) {
  SlabPool& slabs = objects_->slabs();
  while (true) {
    const bool short_slab = short_of_memory_.load(std::memory_order_relaxed);
    if (slabs.Allocate(footprint, short_slab, entry)) return OkStatus();
    const Status added = AddSegment(footprint);
    if (added.ok()) continue;
    if (!footprint.is_run() && slabs.Allocate(footprint, true, entry)) return OkStatus();
    if (added.code() == StatusCode::kUnavailable)
      return NoRoom(entry->value_bytes, "memory is being prepared");
    short_of_memory_.store(true, std::memory_order_relaxed);
    if (effort->rounds_left-- <= 0 || !MakeRoom(footprint, effort))
      return NoRoom(entry->value_bytes, "everything in the way is in use");
    if (slabs.Allocate(footprint, true, entry)) return OkStatus();
  }
}

Status RoomMaker::AddSegment(const Footprint& footprint) {
  if (objects_->closed())
    return Error(StatusCode::kUnavailable, "namespace {} is gone", objects_->name());
  const uint64_t bytes_min = footprint.pages * kPageBytes;  // 0 for slabs: any will do
  Result<std::unique_ptr<Segment>> segment =
      source_->Acquire(this, std::max(bytes_min, kPageBytes));
  if (!segment.ok()) return segment.status();
  EMS_CHECK((*segment)->size_bytes() >= bytes_min, "a segment of {} bytes where {} were asked for",
            (*segment)->size_bytes(), bytes_min);
  objects_->slabs().Add(std::move(*segment));
  if (objects_->closed()) objects_->slabs().DrainAll();
  return OkStatus();
}

// Frees something that helps. False: nothing can be freed now.
bool RoomMaker::MakeRoom(const Footprint& footprint, Effort* effort) {
  if (objects_->FreeRetiredForRoom() || EvictKept(objects_, kKeptStep)) return true;
  FreshenOrder();
  if (EvictMarked(kMarkedStep) > 0) {
    if (objects_->sharing().waiting() > 0) objects_->FreeRetired();
    ++effort->rounds_left;  // bounded by the drains
    return true;
  }
  if (!footprint.is_run() && EvictSome(footprint.size_class, &effort->skips_left)) return true;
  if (IsTight(objects_->slabs().SupplyOf(footprint, 0)) &&
      EvictSome(ObjectIndex::kAnyClass, &effort->skips_left)) {
    ++effort->rounds_left;  // bounded by the bytes
    return true;
  }
  if (effort->drains_left-- <= 0) return false;
  if (footprint.is_run()) return DrainFor(footprint, footprint.pages);
  const SizeClass& wanted = SizeClasses::Get().at(footprint.size_class);
  return DrainFor(footprint, wanted.slab_pages_short) || DrainFor(footprint, wanted.slab_pages_min);
}

bool RoomMaker::EvictSome(int size_class, int* skips_left) {
  const bool evicted = EvictOne(size_class, skips_left);
  const Sharing& sharing = objects_->sharing();
  for (uint32_t i = 1; evicted && i < Sharing::kWaitingMax && sharing.waiting() > 0; ++i)
    if (!EvictOne(size_class, skips_left)) break;
  return (sharing.waiting() > 0 && objects_->FreeRetired()) || evicted;
}

// Chooses `pages` neighbouring pages that lose least and marks who is there. `spare_young`: nobody
// touched in the last 1024th of the time since the coldest was, so that what is freed ahead is
// never the object that was just stored. A larger part makes too many searches fail: with a
// quarter, Reserve of mixed sizes took 3 to 13 us at p99 instead of less than 2.
bool RoomMaker::DrainCheapest(uint32_t pages, bool spare_young) {
  const int64_t now = clock_->Now().time_since_epoch().count();
  Ages ages;
  ages.coldest_ns = std::min(objects_->index().ColdestTouch(), now);
  ages.now_ns = now;
  if (spare_young) ages.spared_from_ns = now - (now - ages.coldest_ns) / 1024;
  std::vector<Victim> victims;
  if (!objects_->slabs().DrainNear(pages, ages, &victims)) return false;
  MarkForEviction(victims);
  return true;
}

// The same for a Take that has to have it, young ones and far ones included.
bool RoomMaker::DrainFor(const Footprint& footprint, uint32_t pages) {
  if (DrainCheapest(pages, true) || DrainCheapest(pages, false)) return true;
  SlabPool& slabs = objects_->slabs();
  std::vector<Victim> victims;
  if ((footprint.is_run() || !slabs.DrainSomeSlab(pages, &victims)) &&
      !slabs.DrainWindow(pages, &victims))
    return false;
  MarkForEviction(victims);
  return true;
}

void RoomMaker::MarkForEviction(const std::vector<Victim>& victims) {
  auto marked = marked_.Lock();
  marked->insert(marked->end(), victims.begin(), victims.end());
}

void RoomMaker::EvictVictims(std::span<const Victim> victims) {
  bool written = true;
  for (const Victim& victim : victims) written = objects_->EvictVictim(victim) && written;
  if (!written) source_->HurryWrites();
}

size_t RoomMaker::EvictMarked(size_t count) {
  size_t evicted = 0;
  std::array<Victim, kMarkedStep> step;
  while (evicted < count) {
    size_t size = 0;
    {
      auto marked = marked_.Lock();
      for (; size < step.size() && evicted + size < count && !marked->empty(); ++size) {
        step[size] = marked->back();
        marked->pop_back();
      }
    }
    if (size == 0) break;
    EvictVictims(std::span(step).first(size));
    evicted += size;
  }
  return evicted;
}

void RoomMaker::FinishDraining() {
  EvictMarked(SIZE_MAX);
  std::vector<Victim> victims;
  objects_->slabs().Leftovers(kLeftoversMax, &victims);
  EvictVictims(victims);
}

Duration RoomMaker::IdleMost(uint64_t value_bytes, const Footprint& footprint, bool spare) {
  Quota& quota = objects_->quota();
  const bool charged = quota.limit() == 0 || quota.used() + value_bytes <= quota.limit();
  if (spare && charged && objects_->entries().taken() < objects_max()) {
    const uint64_t bytes = std::max(pool_->segment_bytes(), footprint.pages * kPageBytes);
    if (pool_->free_bytes() >= bytes) return Duration::max();
    const SlabPool::Supply supply = objects_->slabs().SupplyOf(footprint, 0);
    if (supply.fits && !IsTight(supply)) return Duration::max();
  }
  FreshenOrder();
  int64_t coldest_ns = objects_->index().ColdestTouch();
  // What is kept for others goes first, but makes no room in the quota, to which it does not count.
  if (charged) coldest_ns = std::min(coldest_ns, objects_->kept().ColdestTouch());
  if (coldest_ns == EvictionPolicy::kNever) return Duration::zero();
  const int64_t now_ns = clock_->Now().time_since_epoch().count();
  return Duration(std::max<int64_t>(now_ns - coldest_ns, 0));
}

bool RoomMaker::TrimToQuota() {
  int skips_left = kSkipsMax;
  for (uint64_t i = 0; i < kTrimMax && objects_->quota().exceeded(); ++i) {
    if (!EvictOne(ObjectIndex::kAnyClass, &skips_left)) return false;
  }
  return objects_->quota().exceeded();
}

uint64_t RoomMaker::EvictColdest(uint64_t objects, uint64_t value_bytes) {
  int skips_left = kSkipsMax;
  uint64_t bytes = 0;
  if (EvictKept(objects_, objects)) return objects;
  for (uint64_t i = 0; i < objects; ++i) {
    const auto gone = objects_->EvictColdest(ObjectIndex::kAnyClass, &skips_left);
    if (!gone) return i;
    bytes += *gone;
    if (bytes >= value_bytes) return i + 1;
  }
  return objects;
}

bool RoomMaker::SurrenderSegment(bool now) {
  std::vector<Victim> victims;
  std::unique_ptr<Segment> empty;
  (void)EvictKept(objects_, kKeptMost);  // they lie everywhere
  if (!objects_->slabs().DrainSegment(&victims, &empty)) return false;
  EMS_CHECK(empty == nullptr || victims.empty(), "{} objects in an empty segment", victims.size());
  if (empty != nullptr) pool_->Release(std::move(empty));
  MarkForEviction(victims);
  if (now) EvictMarked(SIZE_MAX);
  return true;
}

// The longest run that one of the last 256 to 512 Puts has needed. An object in a slab counts if
// the one before it was of another class: then a new slab may be next.
uint32_t RoomMaker::RunAhead(const Footprint& last) {
  const int before = last_class_.exchange(last.size_class, std::memory_order_relaxed);
  const bool changed = before != last.size_class && before != ObjectIndex::kAnyClass;
  uint32_t pages = last.pages;
  if (!last.is_run() && changed) pages = SizeClasses::Get().at(last.size_class).slab_pages_short;
  if (puts_.fetch_add(1, std::memory_order_relaxed) % kRememberPuts == 0) {
    longest_before_.store(longest_.load(std::memory_order_relaxed), std::memory_order_relaxed);
    longest_.store(pages, std::memory_order_relaxed);
  } else if (pages > longest_.load(std::memory_order_relaxed)) {
    longest_.store(pages, std::memory_order_relaxed);
  }
  return std::max(longest_.load(std::memory_order_relaxed),
                  longest_before_.load(std::memory_order_relaxed));
}

bool RoomMaker::MayAsk() {
  const int64_t now = Clock::System().Now().time_since_epoch().count();
  if (now < next_ask_ns_.load(std::memory_order_relaxed)) return false;
  next_ask_ns_.store(now + kAskEvery.count(), std::memory_order_relaxed);
  return true;
}

// Before the coldest goes: what clients of this host have used lately is not the coldest. Without
// it, an order that lags behind by the time between two looks of "ems-shm" loses hits.
void RoomMaker::FreshenOrder() {
  if (objects_->sharing().touches().empty()) return;
  const int64_t now = clock_->Now().time_since_epoch().count();
  int64_t due = next_fresh_ns_.load(std::memory_order_relaxed);
  if (now < due || !next_fresh_ns_.compare_exchange_strong(due, now + kFreshenEvery.count(),
                                                           std::memory_order_relaxed))
    return;
  for (int i = 0; i < kFreshenRounds && objects_->TakeTouches() > 0; ++i) {
  }
}

void RoomMaker::MakeAhead(const Footprint& last) {
  const uint32_t run_pages = RunAhead(last);
  if (!short_of_memory_.load(std::memory_order_relaxed) ||
      making_ahead_.test_and_set(std::memory_order_acquire))
    return;
  FreshenOrder();
  int searches_left = 1;
  for (int i = 0; i < kAheadSteps && FreeAhead(last, run_pages, &searches_left); ++i) {
  }
  making_ahead_.clear(std::memory_order_release);
}

// One step; false: there is enough, or nothing can be done now. *searches_left bounds what is
// costly.
bool RoomMaker::FreeAhead(const Footprint& last, uint32_t run_pages, int* searches_left) {
  const SlabPool::Supply supply = objects_->slabs().SupplyOf(last, run_pages);
  const bool keeps_run = run_pages * kAheadShare <= supply.pages;
  if ((supply.fits || last.is_run()) && (supply.has_run || !keeps_run)) return false;
  if (EvictMarked(1) > 0) return true;
  if (MayAsk() && AddSegment({}).ok()) {
    short_of_memory_.store(false, std::memory_order_relaxed);
    return false;
  }
  if (EvictKept(objects_, 1)) return true;
  int skips_left = kSkipsMax;
  if (IsTight(supply)) return EvictOne(ObjectIndex::kAnyClass, &skips_left);
  if (!last.is_run() && !supply.fits && EvictOne(last.size_class, &skips_left)) return true;
  if (--*searches_left < 0) return false;
  const uint32_t pages = supply.has_run || !keeps_run
                             ? SizeClasses::Get().at(last.size_class).slab_pages_short
                             : run_pages;
  return DrainCheapest(pages, true) || EvictOne(ObjectIndex::kAnyClass, &skips_left);
}

}  // namespace ems::server
