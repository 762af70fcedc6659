#include "mp_server/ssd/region_space.h"

#include <algorithm>

#include "common/check.h"

namespace ems::ssd {

RegionSpace::RegionSpace(RegionLog* log) : log_(log) {}

void RegionSpace::SetLimits(const std::vector<NamespaceLimits>& limits) {
  limits_.clear();
  for (const NamespaceLimits& one : limits) limits_[one.ref] = one;
}

const NamespaceLimits* RegionSpace::LimitsOf(NamespaceRef ns) const {
  const auto it = limits_.find(ns);
  return it == limits_.end() ? nullptr : &it->second;
}

bool RegionSpace::relaxed_sync(NamespaceRef ns) const {
  const NamespaceLimits* limits = LimitsOf(ns);
  return limits != nullptr && limits->relaxed_sync;
}

uint64_t RegionSpace::FillLimit(NamespaceRef ns) const {
  const uint64_t all = log_->options().region_bytes;
  const NamespaceLimits* limits = LimitsOf(ns);
  if (limits == nullptr || limits->quota_bytes == 0 || limits->quota_bytes >= all) return all;
  return std::min(all, kBlockBytes + RoundUp(limits->quota_bytes, kBlockBytes));
}

uint64_t RegionSpace::MostOf(NamespaceRef ns) const {
  const NamespaceLimits* limits = LimitsOf(ns);
  if (limits == nullptr || limits->quota_bytes == 0) return UINT64_MAX;
  return std::max<uint64_t>(1, limits->quota_bytes / log_->options().region_bytes);
}

uint64_t RegionSpace::RegionsOf(NamespaceRef ns) const {
  const auto count = log_->in_use().find(ns);
  return count == log_->in_use().end() ? 0 : count->second;
}

std::set<NamespaceRef> RegionSpace::BelowReserved() {
  std::set<NamespaceRef> below;
  for (const auto& [ns, limits] : limits_) {
    const uint64_t full = RegionsOf(ns) - (OpenOf(ns) != nullptr ? 1 : 0);
    if (full * log_->options().region_bytes < limits.reserved_bytes) below.insert(ns);
  }
  return below;
}

int64_t RegionSpace::ExcessOf(NamespaceRef ns) const {
  const NamespaceLimits* limits = LimitsOf(ns);
  const uint64_t reserved =
      limits == nullptr ? 0 : limits->reserved_bytes / log_->options().region_bytes;
  return static_cast<int64_t>(RegionsOf(ns)) - static_cast<int64_t>(reserved);
}

Region* RegionSpace::OpenOf(NamespaceRef ns) {
  const auto it = open_.find(ns);
  if (it == open_.end()) return nullptr;
  if (it->second->state == RegionState::kOpen && it->second->ns == ns) return it->second;
  open_.erase(it);  // a write failed there
  return nullptr;
}

void RegionSpace::SetOpen(NamespaceRef ns, Region* region) {
  EMS_CHECK(region->state == RegionState::kOpen && region->ns == ns,
            "region {} is not begun for namespace {}", region->id, ns.id.value());
  Seal(ns);
  open_[ns] = region;
}

void RegionSpace::Seal(NamespaceRef ns) {
  if (Region* open = OpenOf(ns); open != nullptr) open->state = RegionState::kSealed;
  open_.erase(ns);
}

Result<RegionSpace::Choice> RegionSpace::Next(NamespaceRef ns) {
  if (const uint64_t count = RegionsOf(ns); count >= MostOf(ns)) {
    EMS_ASSIGN_OR_RETURN(Choice own, OldestOf(ns));
    if (count == MostOf(ns)) return own;
    // The quota has been lowered: one goes with each that is taken, until it is kept.
    own.region->state = RegionState::kOpen;  // not this one again
    bool busy = false;
    own.surplus = OldestIdle(ns, false, &busy);
    if (own.surplus != nullptr && own.surplus->moves_under_way > 0) own.surplus = nullptr;  // later
    own.region->state = RegionState::kSealed;
    return own;
  }
  Result<Region*> free = log_->TakeFree();
  disk_ = free.ok() || free.status().code() == StatusCode::kOutOfRange ? OkStatus() : free.status();
  if (free.ok()) return Choice{*free, false, nullptr};
  if (Region* orphan = Orphan(); orphan != nullptr) return Give(orphan);
  Result<Choice> oldest = OldestOf(FurthestAbove(ns, FloorOf(ns)));
  if (oldest.ok() || oldest.status().code() == StatusCode::kUnavailable || disk_.ok())
    return oldest;
  return Error(StatusCode::kResourceExhausted, "{}", Message(disk_));
}

// Two equals do not rob each other in turn; who has none at all may take from who has one.
int64_t RegionSpace::FloorOf(NamespaceRef ns) const {
  return RegionsOf(ns) == 0 ? 0 : std::max<int64_t>(0, ExcessOf(ns) + 1);
}

Region* RegionSpace::NextVictim(NamespaceRef ns) {
  bool busy = false;
  if (RegionsOf(ns) >= MostOf(ns)) return OldestIdle(ns, false, &busy);
  const bool may_grow = disk_.ok() && log_->count() < log_->options().regions_max;
  if (log_->free_count() > 0 || may_grow || Orphan() != nullptr) return nullptr;
  return OldestIdle(FurthestAbove(ns, FloorOf(ns)), false, &busy);
}

// Of a namespace that is no more.
Region* RegionSpace::Orphan() {
  const bool any = std::any_of(log_->in_use().begin(), log_->in_use().end(),
                               [this](const auto& one) { return LimitsOf(one.first) == nullptr; });
  if (limits_.empty() || !any) return nullptr;
  for (const auto& region : log_->regions()) {
    const bool orphan = region->state != RegionState::kFree && LimitsOf(region->ns) == nullptr;
    const bool busy = region->writes_under_way > 0 || region->moves_under_way > 0;
    if (orphan && !busy) return region.get();
  }
  return nullptr;
}

RegionSpace::Choice RegionSpace::Give(Region* region) {
  if (const auto it = open_.find(region->ns); it != open_.end() && it->second == region)
    open_.erase(it);
  region->state = RegionState::kSealed;
  return {region, true, nullptr};
}

NamespaceRef RegionSpace::FurthestAbove(NamespaceRef otherwise, int64_t most) const {
  NamespaceRef victim = otherwise;
  for (const auto& [other, count] : log_->in_use()) {
    if (const int64_t excess = ExcessOf(other); excess > most) {
      victim = other;
      most = excess;
    }
  }
  return victim;
}

Result<RegionSpace::Choice> RegionSpace::NextToGo() {
  return OldestOf(FurthestAbove(NamespaceRef(), INT64_MIN));
}

Region* RegionSpace::OldestIdle(NamespaceRef ns, bool open, bool* busy) {
  Region* oldest = nullptr;
  for (const auto& region : log_->regions()) {
    const bool goes = region->state == RegionState::kSealed || region->state == RegionState::kBad ||
                      (open && region->state == RegionState::kOpen);
    if (!goes || region->ns != ns) continue;
    if (region->writes_under_way > 0) {
      *busy = true;
    } else if (region->members.empty() && region->state != RegionState::kOpen) {
      return region.get();  // nothing is lost with it
    } else if (oldest == nullptr || region->sequence < oldest->sequence) {
      oldest = region.get();
    }
  }
  return oldest;
}

Result<RegionSpace::Choice> RegionSpace::OldestOf(NamespaceRef ns) {
  bool busy = false;
  Region* oldest = OldestIdle(ns, false, &busy);
  if (oldest == nullptr) oldest = OldestIdle(ns, true, &busy);
  if (oldest != nullptr && oldest->moves_under_way == 0) return Give(oldest);
  if (oldest != nullptr)
    return Error(StatusCode::kUnavailable, "what is read of region {} still moves", oldest->id);
  if (busy) return Error(StatusCode::kUnavailable, "regions are still being written");
  return Error(StatusCode::kResourceExhausted, "every region belongs to others");
}

}  // namespace ems::ssd
