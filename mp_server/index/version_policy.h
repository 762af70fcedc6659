#pragma once
// Blocks of models by version, everything else least recently used first.
//
// What goes first is the coldest of two: the least recently used object without a group, and the
// least recently used block of the coldest group. So a version goes whole before another one loses
// a block, and a block that is read alone keeps its version.
// Invariant: an object is in the list of its group. Bound: a list for each group that has blocks
// here.
#include <cstdint>
#include <map>

#include "mp_server/index/eviction_policy.h"
#include "mp_server/index/lru_policy.h"
#include "mp_server/index/version_heat.h"

namespace ems::server {

// Threading: caller locks. Cost: O(1), and O(groups here) for the first call after the coldest
// group was used or is gone; OnGroup allocates.
class VersionPolicy final : public EvictionPolicy {
 public:
  // Must outlive it.
  explicit VersionPolicy(VersionHeat* heat) : heat_(heat) {}

  void OnInsert(EvictionHook* hook, int64_t now_ns) override;
  void OnTouch(EvictionHook* hook, int64_t now_ns) override { Move(hook, now_ns, false); }
  void OnHeld(EvictionHook* hook, int64_t now_ns) override { Move(hook, now_ns, true); }
  void OnRemove(EvictionHook* hook) override;
  void OnGroup(EvictionHook* hook, uint32_t group) override;
  EvictionHook* Coldest() const override;
  int64_t ColdestNs() const override;

 private:
  void Move(EvictionHook* hook, int64_t now_ns, bool held);
  // Finds the coldest group, unless it is known.
  void Look() const;

  VersionHeat* const heat_;
  LruPolicy alone_;                       // without a group
  std::map<uint32_t, LruPolicy> groups_;  // none is empty
  // What Look has found.
  mutable uint32_t coldest_ = 0;  // 0: nothing
  mutable int64_t coldest_ns_ = kNever;
  mutable uint64_t forgotten_ = 0;
};

}  // namespace ems::server
