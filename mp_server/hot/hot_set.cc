#include "mp_server/hot/hot_set.h"

#include <algorithm>
#include <utility>

#include "proto/copy_hint.h"

namespace ems::server {

static_assert(HotHolders::kMost == wire::kHotCopiesMax);

double HotSet::HeatOf(double reads_per_s, double bytes_per_s) const {
  double heat = 0;
  if (options_.reads_per_s > 0) heat = reads_per_s / options_.reads_per_s;
  if (options_.bytes_per_s > 0) heat = std::max(heat, bytes_per_s / options_.bytes_per_s);
  return heat;
}

HotSet::Hot* HotSet::Find(const Key& key) {
  const auto found = std::ranges::find_if(hot_, [&](const Hot& hot) {
    return hot.key.hash == key.hash && hot.key.ns == key.ns && hot.key.key == key.key;
  });
  return found == hot_.end() ? nullptr : &*found;
}

HotSet::Hot* HotSet::PlaceFor(double heat) {
  if (hot_.size() < kKeys) return &hot_.emplace_back();
  const auto coldest = std::ranges::min_element(hot_, {}, &Hot::heat);
  if (coldest->heat >= heat) return nullptr;
  *coldest = Hot();
  return &*coldest;
}

size_t HotSet::CopiesOf(const Hot& hot, TimePoint now) {
  return static_cast<size_t>(
      std::ranges::count_if(hot.copies, [&](const Copy& copy) { return copy.until > now; }));
}

size_t HotSet::CountCopies(TimePoint now) const {
  size_t copies = 0;
  for (const Hot& hot : hot_) copies += CopiesOf(hot, now);
  return copies;
}

void HotSet::Count(std::span<const ReadCount> counts, Duration period, TimePoint now) {
  const double seconds = std::max(std::chrono::duration<double>(period).count(), 1e-3);
  for (Hot& hot : hot_) hot.heat = 0;
  for (const ReadCount& count : counts) {
    double heat = HeatOf(static_cast<double>(count.reads) / seconds,
                         static_cast<double>(count.bytes) / seconds);
    const Key key{.ns = count.ns, .slot = count.slot, .key = count.key, .hash = count.hash};
    Hot* hot = Find(key);
    if (hot != nullptr) {
      heat *= static_cast<double>(1 + CopiesOf(*hot, now));
      hot->heat = heat;
      if (heat >= 0.5) hot->hot_until = now + kCoolFor;
      continue;
    }
    if (heat < 1) continue;
    hot = PlaceFor(heat);
    if (hot != nullptr) *hot = {.key = key, .heat = heat, .hot_until = now + kCoolFor};
  }
  std::erase_if(hot_, [&](const Hot& hot) { return hot.hot_until <= now; });
}

void HotSet::Follow(const DhtView& view, NodeId self) {
  std::erase_if(hot_, [&](const Hot& hot) { return view.OwnerId(hot.key.slot) != self; });
  const bool anew = std::exchange(followed_, view.version()) != view.version();
  for (Hot& hot : hot_) {
    const HotHolders holders = HotHolders::Of(view, hot.key.slot, hot.key.hash.lo);
    for (size_t i = 0; i < hot.copies.size(); ++i) {
      if (anew || hot.copies[i].node != holders.nodes[i])
        hot.copies[i] = {.node = holders.nodes[i]};
    }
  }
}

std::optional<HotSet::Wanted> HotSet::Next(TimePoint now) const {
  const Hot* best = nullptr;
  const Copy* copy = nullptr;
  double worth = 0;
  for (const Hot& hot : hot_) {
    for (size_t i = 0; i < std::min(options_.copies, hot.copies.size()); ++i) {
      const Copy& one = hot.copies[i];
      if (one.node == kNoNode || one.again_at > now || one.until > now + options_.keep_for / 2)
        continue;
      // One that is missing is worth more than one that has time still, and the first more than
      // the second.
      const double value = hot.heat * (one.until > now ? 0.5 : 1) / static_cast<double>(i + 1);
      if (best != nullptr && value <= worth) continue;
      best = &hot;
      copy = &one;
      worth = value;
    }
  }
  if (best == nullptr) return std::nullopt;
  return Wanted{.key = best->key, .node = copy->node};
}

void HotSet::OnSent(const Wanted& wanted, TimePoint sent, bool kept) {
  Hot* const hot = Find(wanted.key);
  if (hot == nullptr) return;
  for (Copy& copy : hot->copies) {
    if (copy.node != wanted.node) continue;
    if (kept) copy.until = sent + options_.keep_for;
    copy.again_at = kept ? TimePoint{} : sent + kPause;
  }
}

std::vector<NodeId> HotSet::HoldersOf(const Key& key) {
  std::vector<NodeId> holders;
  const Hot* const hot = Find(key);
  if (hot == nullptr) return holders;
  for (const Copy& copy : hot->copies)
    if (copy.until != TimePoint{}) holders.push_back(copy.node);
  return holders;
}

void HotSet::Forget(const Key& key) {
  std::erase_if(hot_, [&](const Hot& hot) {
    return hot.key.hash == key.hash && hot.key.ns == key.ns && hot.key.key == key.key;
  });
}

std::vector<CopyHints::Hint> HotSet::Hints(TimePoint now) const {
  std::vector<CopyHints::Hint> hints;
  for (const Hot& hot : hot_) {
    wire::CopyHint hint{.holders = 0, .seconds = wire::kCopySecondsMax};
    for (size_t i = 0; i < hot.copies.size(); ++i) {
      const Duration left = hot.copies[i].until - now - kMargin;
      const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(left).count();
      if (seconds < 1) continue;
      hint.holders = static_cast<uint8_t>(hint.holders | 1 << i);
      hint.seconds = std::min(hint.seconds, static_cast<uint32_t>(seconds));
    }
    if (const uint8_t packed = hint.Pack(); packed != 0)
      hints.push_back({.ns = hot.key.ns, .hash = hot.key.hash, .packed = packed});
  }
  return hints;
}

}  // namespace ems::server
