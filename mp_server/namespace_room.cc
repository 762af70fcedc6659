// How a NamespaceStore makes room in its memory: for the Reserve that needs it now, and ahead of
// the next one.
#include <algorithm>
#include <array>
#include <vector>

#include "mp_server/namespace_store.h"

namespace ems::server {
namespace {

constexpr uint64_t kLooseShare = 28;  // free memory up to a twenty-eighth: evict the coldest
constexpr uint64_t kAheadShare = 32;  // the longest run that is kept free: this part of all pages
constexpr int kAheadSteps = 64;       // what one Publish frees at most
constexpr uint32_t kRememberPuts = 256;
constexpr Duration kAskEvery = std::chrono::milliseconds(1);
constexpr Duration kFreshenEvery = std::chrono::milliseconds(1);
constexpr int kFreshenRounds = 4;
constexpr size_t kDoomedStep = 16;
constexpr size_t kLeftoversMax = 1024;

}  // namespace

// Frees something that helps. False: nothing can be freed now.
bool NamespaceStore::MakeRoom(const Footprint& footprint, Effort* effort) {
  if (FreeParked()) return true;
  FreshenOrder();
  if (EvictDoomed(kDoomedStep) > 0) {
    ++effort->rounds_left;  // bounded by the drains
    return true;
  }
  if (!footprint.is_run() && EvictOne(footprint.size_class, &effort->skips_left)) return true;
  const SlabPool::Supply supply = slabs_.SupplyOf(footprint, 0);
  if (supply.free_bytes() * kLooseShare < supply.pages * kPageBytes &&
      EvictOne(ObjectIndex::kAnyClass, &effort->skips_left)) {
    ++effort->rounds_left;  // bounded by the bytes
    return true;
  }
  if (effort->drains_left-- <= 0) return false;
  if (footprint.is_run()) return DrainFor(footprint, footprint.pages);
  const SizeClass& wanted = SizeClasses::Get().at(footprint.size_class);
  return DrainFor(footprint, wanted.slab_pages_short) || DrainFor(footprint, wanted.slab_pages_min);
}

// False: there is none that can go, or the coldest is of another class.
bool NamespaceStore::EvictOne(int size_class, int* skips_left) {
  const auto taken = index_.TakeColdest(size_class, skips_left);
  if (taken.outcome != ObjectIndex::TakeOutcome::kTaken) return false;
  Evict(taken.entry);
  return true;
}

// Chooses `pages` neighbouring pages that lose least and dooms who is there. `spare_young`: nobody
// touched in the last 1024th of the time since the coldest was, so that what is freed ahead is
// never the object that was just stored. A larger part makes too many searches fail: with a
// quarter, Reserve of mixed sizes took 3 to 13 us at p99 instead of less than 2.
bool NamespaceStore::DrainCheapest(uint32_t pages, bool spare_young) {
  const int64_t now = options_.clock->Now().time_since_epoch().count();
  Ages ages;
  ages.coldest_ns = std::min(index_.ColdestTouch(), now);
  ages.now_ns = now;
  if (spare_young) ages.spared_from_ns = now - (now - ages.coldest_ns) / 1024;
  std::vector<Victim> victims;
  if (!slabs_.DrainNear(pages, ages, &victims)) return false;
  Doom(victims);
  return true;
}

// The same for a Reserve that has to have it, young ones and far ones included.
bool NamespaceStore::DrainFor(const Footprint& footprint, uint32_t pages) {
  if (DrainCheapest(pages, true) || DrainCheapest(pages, false)) return true;
  std::vector<Victim> victims;
  if ((footprint.is_run() || !slabs_.DrainSomeSlab(pages, &victims)) &&
      !slabs_.DrainWindow(pages, &victims))
    return false;
  Doom(victims);
  return true;
}

void NamespaceStore::Doom(const std::vector<Victim>& victims) {
  auto doomed = doomed_.Lock();
  doomed->insert(doomed->end(), victims.begin(), victims.end());
}

// Evicts up to `count` of those who are in the way; how many there were.
size_t NamespaceStore::EvictDoomed(size_t count) {
  size_t evicted = 0;
  std::array<Victim, kDoomedStep> step;
  while (evicted < count) {
    size_t size = 0;
    {
      auto doomed = doomed_.Lock();
      for (; size < step.size() && evicted + size < count && !doomed->empty(); ++size) {
        step[size] = doomed->back();
        doomed->pop_back();
      }
    }
    if (size == 0) break;
    for (size_t i = 0; i < size; ++i) EvictVictim(step[i]);
    evicted += size;
  }
  return evicted;
}

// Somebody may hold it: then its name goes now, and its memory when it is let go.
void NamespaceStore::EvictVictim(const Victim& victim) {
  if (ObjectEntry* entry = index_.Unlink(victim, false); entry != nullptr) Evict(entry);
}

void NamespaceStore::FinishDraining() {
  EvictDoomed(SIZE_MAX);
  std::vector<Victim> victims;
  slabs_.Leftovers(kLeftoversMax, &victims);
  for (const Victim& victim : victims) EvictVictim(victim);
}

// The longest run that one of the last 256 to 512 Puts has needed. An object in a slab counts if
// the one before it was of another class: then a new slab may be next.
uint32_t NamespaceStore::RunAhead(const Footprint& last) {
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

bool NamespaceStore::MayAsk() {
  const int64_t now = Clock::System().Now().time_since_epoch().count();
  if (now < next_ask_ns_.load(std::memory_order_relaxed)) return false;
  next_ask_ns_.store(now + kAskEvery.count(), std::memory_order_relaxed);
  return true;
}

// Before the coldest goes: what clients of this host have used lately is not the coldest. Without
// it, an order that lags behind by the 10 ms between two looks of "ems-shm" loses hits.
void NamespaceStore::FreshenOrder() {
  if (sharing_.touches().empty()) return;
  const int64_t now = options_.clock->Now().time_since_epoch().count();
  int64_t due = next_fresh_ns_.load(std::memory_order_relaxed);
  if (now < due || !next_fresh_ns_.compare_exchange_strong(due, now + kFreshenEvery.count(),
                                                           std::memory_order_relaxed))
    return;
  for (int i = 0; i < kFreshenRounds && TakeTouches(); ++i) {
  }
}

// Makes up for what a Put has taken. One thread at a time; others leave it to that one, or to their
// next Reserve.
void NamespaceStore::MakeAhead(const Footprint& last) {
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
bool NamespaceStore::FreeAhead(const Footprint& last, uint32_t run_pages, int* searches_left) {
  SlabPool::Supply supply = slabs_.SupplyOf(last, run_pages);
  const bool keeps_run = run_pages * kAheadShare <= supply.pages;
  if ((supply.fits || last.is_run()) && (supply.has_run || !keeps_run)) return false;
  if (EvictDoomed(1) > 0) return true;
  if (MayAsk() && AddSegment({}).ok()) {
    short_of_memory_.store(false, std::memory_order_relaxed);
    return false;
  }
  int skips_left = kSkipsMax;
  if (supply.free_bytes() * kLooseShare < supply.pages * kPageBytes)
    return EvictOne(ObjectIndex::kAnyClass, &skips_left);
  if (!last.is_run() && !supply.fits && EvictOne(last.size_class, &skips_left)) return true;
  if (--*searches_left < 0) return false;
  const uint32_t pages = supply.has_run || !keeps_run
                             ? SizeClasses::Get().at(last.size_class).slab_pages_short
                             : run_pages;
  return DrainCheapest(pages, true) || EvictOne(ObjectIndex::kAnyClass, &skips_left);
}

}  // namespace ems::server
