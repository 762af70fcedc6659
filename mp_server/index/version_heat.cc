#include "mp_server/index/version_heat.h"

#include <algorithm>
#include <utility>

#include "common/check.h"

namespace ems::server {

void VersionHeat::Raise(std::atomic<int64_t>* used_ns, int64_t now_ns) {
  int64_t before = used_ns->load(std::memory_order_relaxed);
  while (before < now_ns &&
         !used_ns->compare_exchange_weak(before, now_ns, std::memory_order_relaxed)) {
  }
}

void VersionHeat::Use(uint32_t version, int64_t now_ns) {
  auto state = state_.Lock();
  if (const uint32_t group = GroupOf(&*state, {version})) Raise(&at(group)->used_ns, now_ns);
}

int64_t VersionHeat::UsedNs(uint32_t group) const {
  const Group& one = *at(group);
  int64_t used = one.used_ns.load(std::memory_order_relaxed);
  for (const std::atomic<uint32_t>& alone : one.alone) {
    const uint32_t other = alone.load(std::memory_order_relaxed);
    if (other == 0) break;
    used = std::max(used, at(other)->used_ns.load(std::memory_order_relaxed));
  }
  return used;
}

void VersionHeat::Touch(uint32_t group, int64_t now_ns, bool held) {
  std::atomic<int64_t>& used = at(group)->used_ns;
  if (held || now_ns - used.load(std::memory_order_relaxed) >= kGrainNs) Raise(&used, now_ns);
}

void VersionHeat::Count(uint32_t group, int32_t by) {
  const int32_t before = at(group)->blocks.fetch_add(by, std::memory_order_relaxed);
  EMS_CHECK(before + by >= 0, "group {} has {} blocks and loses {}", group, before, -by);
}

void VersionHeat::Release(State* state, uint32_t group) {
  if (!state->members[group].empty()) state->by_members.erase(state->members[group]);
  state->members[group].clear();
  Group& one = state->groups[group];
  one.used_ns.store(0, std::memory_order_relaxed);
  for (auto& alone : one.alone) alone.store(0, std::memory_order_relaxed);
}

// A version's own group stays as long as the version is known: others count by it.
uint32_t VersionHeat::Unused(State* state) {
  if (state->next < kGroupsMax) return state->next++;
  for (uint32_t group = 1; group < kGroupsMax; ++group) {
    if (state->members[group].size() == 1 ||
        state->groups[group].blocks.load(std::memory_order_relaxed) > 0)
      continue;
    Release(state, group);
    return group;
  }
  return 0;
}

uint32_t VersionHeat::GroupOf(State* state, std::vector<uint32_t> members) {
  const auto found = state->by_members.find(members);
  if (found != state->by_members.end()) return found->second;
  if (state->groups == nullptr) {
    state->groups = std::make_unique<Group[]>(kGroupsMax);
    state->members.resize(kGroupsMax);
    groups_.store(state->groups.get(), std::memory_order_release);
  }
  std::vector<uint32_t> alone;
  if (members.size() > 1) {
    for (const uint32_t version : members) {
      if (const uint32_t own = GroupOf(state, {version})) alone.push_back(own);
    }
  }
  const uint32_t group = Unused(state);
  if (group == 0) return 0;
  for (size_t i = 0; i < alone.size(); ++i)
    state->groups[group].alone[i].store(alone[i], std::memory_order_relaxed);
  state->by_members[members] = group;
  state->members[group] = std::move(members);
  return group;
}

uint32_t VersionHeat::Joined(uint32_t group, uint32_t version) {
  auto state = state_.Lock();
  std::vector<uint32_t> members;
  if (group != 0) members = state->members[group];
  const auto place = std::ranges::lower_bound(members, version);
  if (place != members.end() && *place == version) return group;
  members.insert(place, version);
  if (members.size() > kVersionsInGroupMax) {
    const auto used = [&](uint32_t one) {
      return one == version ? INT64_MAX : UsedNs(GroupOf(&*state, {one}));
    };
    members.erase(std::ranges::min_element(members, {}, used));
  }
  const uint32_t joined = GroupOf(&*state, std::move(members));
  return joined == 0 ? group : joined;
}

void VersionHeat::Forget(uint32_t version) {
  auto state = state_.Lock();
  const auto own = state->by_members.find({version});
  if (own == state->by_members.end()) return;
  const uint32_t alone = own->second;
  for (uint32_t group = 1; group < state->next; ++group) {
    std::vector<uint32_t>& members = state->members[group];
    const auto place = std::ranges::lower_bound(members, version);
    if (place == members.end() || *place != version) continue;
    state->by_members.erase(members);
    members.erase(place);
    // Its blocks stay together, as warm as the others; under their name if that is free.
    const bool named = members.size() > 1 && state->by_members.try_emplace(members, group).second;
    if (!named) members.clear();
    std::vector<uint32_t> left;
    for (auto& one : state->groups[group].alone) {
      const uint32_t other = one.exchange(0, std::memory_order_relaxed);
      if (other != 0 && other != alone) left.push_back(other);
    }
    for (size_t i = 0; i < left.size(); ++i)
      state->groups[group].alone[i].store(left[i], std::memory_order_relaxed);
  }
  state->groups[alone].used_ns.store(0, std::memory_order_relaxed);
  forgotten_.fetch_add(1, std::memory_order_release);
}

}  // namespace ems::server
