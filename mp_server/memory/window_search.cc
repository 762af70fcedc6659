#include "mp_server/memory/window_search.h"

#include <algorithm>

#include "common/check.h"

namespace ems::server {
namespace {

constexpr size_t kSeeds = 12;
constexpr size_t kSlabSeeds = 4;  // besides: slabs with few objects have no free run beside them
constexpr int kLooksMax = 384;
constexpr size_t kSlabSamples = 4;
constexpr double kBytesAsObject = 1e6;
constexpr double kNever = std::numeric_limits<double>::infinity();

// The fourth power leaves the old ones almost free, so that a window of many of them beats one with
// a young one. Objects and bytes count alike: a lost object is a read from elsewhere, and its bytes
// are its length; a weight of bytes alone would evict all small objects, one of objects alone
// of all large ones.
double LossOf(const ObjectEntry& entry, Ages ages) {
  const auto span = static_cast<double>(std::max<int64_t>(1, ages.now_ns - ages.coldest_ns));
  const auto age =
      static_cast<double>(entry.touched_ns.load(std::memory_order_relaxed) - ages.coldest_ns);
  const double part = std::clamp(age / span, 0.0, 1.0);
  return part * part * part * part * (1 + static_cast<double>(entry.value_bytes) / kBytesAsObject);
}

bool IsSpared(const ObjectEntry& entry, Ages ages) {
  return entry.touched_ns.load(std::memory_order_relaxed) >= ages.spared_from_ns;
}

bool HasSpared(const PageRuns::Page* run, Ages ages) {
  if (run->kind == RunKind::kFree) return false;
  if (run->kind == RunKind::kObject)
    return IsSpared(*static_cast<const ObjectEntry*>(run->owner), ages);
  const auto& owners = static_cast<const Slab*>(run->owner)->owners;
  return std::any_of(owners.begin(), owners.end(), [&](const ObjectEntry* owner) {
    return owner != nullptr && IsSpared(*owner, ages);
  });
}

}  // namespace

bool WindowSearch::IsIdle(const Slab& slab) {
  return std::all_of(slab.owners.begin(), slab.owners.end(), [](const ObjectEntry* owner) {
    return owner == nullptr || owner->evictable();
  });
}

bool WindowSearch::IsBlocked(const PageRuns::Page* run) {
  if (run->kind == RunKind::kFree) return false;
  if (run->kind == RunKind::kObject)
    return !static_cast<const ObjectEntry*>(run->owner)->evictable();
  const auto* slab = static_cast<const Slab*>(run->owner);
  return slab->draining || !IsIdle(*slab);
}

double WindowSearch::LossOf(const PageRuns::Page* run, Ages ages) {
  if (run->kind == RunKind::kFree) return 0;
  if (run->kind == RunKind::kObject) {
    const auto& entry = *static_cast<const ObjectEntry*>(run->owner);
    return entry.evictable() && !IsSpared(entry, ages) ? server::LossOf(entry, ages) : kNever;
  }
  const auto& slab = *static_cast<const Slab*>(run->owner);
  if (slab.draining) return kNever;
  const size_t step = std::max<size_t>(1, slab.owners.size() / kSlabSamples);
  double loss = 0;
  size_t looked = 0;
  for (size_t i = 0; i < slab.owners.size(); i += step) {
    if (slab.owners[i] == nullptr) continue;
    if (IsSpared(*slab.owners[i], ages)) return kNever;
    loss += server::LossOf(*slab.owners[i], ages);
    ++looked;
  }
  const auto used = static_cast<double>(slab.used());
  return looked == 0 ? 0 : used * loss / static_cast<double>(looked);
}

// Takes the cheaper neighbour, by page, until it is long enough.
Window WindowSearch::Grow(PageRuns::Page* seed, uint32_t pages, Ages ages, double loss_max) {
  Window window{seed, seed, LossOf(seed, ages)};
  uint64_t length = seed->run_pages;
  PageRuns::Page* left = PageRuns::PrevRun(seed);
  PageRuns::Page* right = PageRuns::NextRun(seed);
  double left_loss = left == nullptr ? kNever : LossOf(left, ages);
  double right_loss = right == nullptr ? kNever : LossOf(right, ages);
  while (length < pages) {
    if (--looks_left_ < 0 || window.loss >= loss_max) return {};
    const double left_price = left == nullptr ? kNever : left_loss / left->run_pages;
    const double right_price = right == nullptr ? kNever : right_loss / right->run_pages;
    if (std::min(left_price, right_price) == kNever) return {};
    if (left_price < right_price) {
      window.first = left;
      window.loss += left_loss;
      length += left->run_pages;
      left = PageRuns::PrevRun(left);
      left_loss = left == nullptr ? kNever : LossOf(left, ages);
    } else {
      window.last = right;
      window.loss += right_loss;
      length += right->run_pages;
      right = PageRuns::NextRun(right);
      right_loss = right == nullptr ? kNever : LossOf(right, ages);
    }
  }
  return window;
}

// Looking for pins and for young objects costs a look at every object, so it is done for windows
// that would win.
bool WindowSearch::IsFree(const Window& window, Ages ages) {
  for (PageRuns::Page* run = window.first;; run = PageRuns::NextRun(run)) {
    if (IsBlocked(run) || HasSpared(run, ages)) return false;
    if (run == window.last) return true;
  }
}

Window WindowSearch::Find(const PageRuns& runs, const std::vector<std::unique_ptr<Slab>>& slabs,
                          uint32_t pages, Ages ages) {
  EMS_CHECK(pages > 0 && ages.coldest_ns <= ages.now_ns, "a window of {} pages, ages {} to {}",
            pages, ages.coldest_ns, ages.now_ns);
  seeds_.clear();
  runs.LongestFree(kSeeds, &seeds_);
  for (size_t i = 0; i < std::min(kSlabSeeds, slabs.size()); ++i) {
    const Slab& slab = *slabs[slab_cursor_++ % slabs.size()];
    if (slab.run != nullptr && !slab.draining && !slab.run->segment->draining)
      seeds_.push_back(slab.run);
  }
  windows_.clear();
  looks_left_ = kLooksMax;
  double least = kNever;
  for (PageRuns::Page* seed : seeds_) {
    const Window window = Grow(seed, pages, ages, least);
    if (window.first == nullptr) continue;
    least = std::min(least, window.loss);
    windows_.push_back(window);
  }
  std::sort(windows_.begin(), windows_.end(),
            [](const Window& a, const Window& b) { return a.loss < b.loss; });
  for (const Window& window : windows_)
    if (IsFree(window, ages)) return window;
  return {};
}

}  // namespace ems::server
