#include "mp_server/index/version_policy.h"

#include <algorithm>

#include "common/check.h"

namespace ems::server {

void VersionPolicy::OnInsert(EvictionHook* hook, int64_t now_ns) {
  hook->group = 0;
  alone_.OnInsert(hook, now_ns);
}

void VersionPolicy::Move(EvictionHook* hook, int64_t now_ns, bool held) {
  if (hook->group == 0) [[likely]]
    return alone_.OnTouch(hook, now_ns);
  groups_.at(hook->group).OnTouch(hook, now_ns);
  heat_->Touch(hook->group, now_ns, held);
}

void VersionPolicy::OnRemove(EvictionHook* hook) {
  if (hook->group == 0) [[likely]]
    return alone_.OnRemove(hook);
  const auto list = groups_.find(hook->group);
  EMS_CHECK(list != groups_.end(), "an object of group {}, which has none", hook->group);
  list->second.OnRemove(hook);
  heat_->Count(hook->group, -1);
  if (list->second.Coldest() == nullptr) {
    if (coldest_ == hook->group) coldest_ = 0;
    groups_.erase(list);
  }
  hook->group = 0;
}

void VersionPolicy::OnGroup(EvictionHook* hook, uint32_t group) {
  if (hook->group == group) return;
  const int64_t touched = hook->touched_ns.load(std::memory_order_relaxed);
  OnRemove(hook);
  hook->group = group;
  if (group == 0) return alone_.OnInsert(hook, touched);
  heat_->Count(group, 1);
  groups_[group].OnInsert(hook, touched);
  coldest_ = 0;  // it may be colder
}

void VersionPolicy::Look() const {
  const uint64_t forgotten = heat_->forgotten();
  if (coldest_ != 0 && forgotten == forgotten_ && heat_->UsedNs(coldest_) == coldest_ns_) return;
  coldest_ = 0;
  coldest_ns_ = kNever;
  forgotten_ = forgotten;
  for (const auto& [group, list] : groups_) {
    const int64_t used = heat_->UsedNs(group);
    if (used >= coldest_ns_) continue;
    coldest_ = group;
    coldest_ns_ = used;
  }
}

EvictionHook* VersionPolicy::Coldest() const {
  EvictionHook* const alone = alone_.Coldest();
  if (groups_.empty()) [[likely]]
    return alone;
  Look();
  if (coldest_ == 0) return alone;
  if (alone != nullptr && alone->touched_ns.load(std::memory_order_relaxed) <= coldest_ns_)
    return alone;
  return groups_.at(coldest_).Coldest();
}

int64_t VersionPolicy::ColdestNs() const {
  const int64_t alone = alone_.ColdestNs();
  if (groups_.empty()) [[likely]]
    return alone;
  Look();
  return coldest_ == 0 ? alone : std::min(alone, coldest_ns_);
}

}  // namespace ems::server
