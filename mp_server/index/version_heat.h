#pragma once
// How warm the versions of models are whose blocks a namespace holds, so that blocks go by version
// and not one by one.
//
// Each block belongs to a group: the set of versions that it is a block of. A group is as warm as
// the warmest of its versions, or as the last touch of one of its own blocks. A touch warms its
// group at most once every kGrainNs, so that a load writes the shared line seldom.
// Invariant: heat only grows, but for a version that is forgotten: what is its alone goes first.
// Bound: kGroupsMax groups, 48 bytes each, made with the first version; groups that have no blocks
// are used again. What finds no group goes by itself.
#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "common/guarded.h"

namespace ems::server {

// Threading: thread-safe; one leaf lock, which policies do not take.
class VersionHeat final {
 public:
  static constexpr uint32_t kGroupsMax = 4096;      // group 0: none
  static constexpr size_t kVersionsInGroupMax = 8;  // of a block of more: the warmest of them
  static constexpr int64_t kGrainNs = 10'000'000;

  // The version is used at `now_ns`.   Cost: one leaf lock.
  void Use(uint32_t version, int64_t now_ns);
  // The version is removed. Groups that it shares with others count as those.
  // Cost: O(kGroupsMax).
  void Forget(uint32_t version);
  // The group of a block of `group` (0: none yet) that is one of `version`, too. The same one, if
  // it is already, or if there is no room for another. Cost: one leaf lock; O(kGroupsMax) when
  // groups have to be used again.
  uint32_t Joined(uint32_t group, uint32_t version);

  // --- For policies: no lock.
  // When the group was used last; 0: its version is forgotten, or was never used.
  int64_t UsedNs(uint32_t group) const;
  // A block of the group was touched; `held`: it was to go and cannot.
  void Touch(uint32_t group, int64_t now_ns, bool held = false);
  // So many blocks are in the group more, or fewer.
  void Count(uint32_t group, int32_t by);
  // Grows with each version that is forgotten.
  uint64_t forgotten() const { return forgotten_.load(std::memory_order_acquire); }

 private:
  struct Group {
    std::atomic<int64_t> used_ns{0};
    std::atomic<int32_t> blocks{0};
    // Groups of its versions alone, if it is of several; 0: none.
    std::array<std::atomic<uint32_t>, kVersionsInGroupMax> alone{};
  };
  struct State {
    std::unique_ptr<Group[]> groups;
    std::vector<std::vector<uint32_t>> members;  // by group: versions, in order
    std::map<std::vector<uint32_t>, uint32_t> by_members;
    uint32_t next = 1;  // of those never used
  };
  Group* at(uint32_t group) const { return &groups_.load(std::memory_order_acquire)[group]; }
  static void Raise(std::atomic<int64_t>* used_ns, int64_t now_ns);
  // 0: there is no room for another.
  uint32_t GroupOf(State* state, std::vector<uint32_t> members);
  uint32_t Unused(State* state);
  void Release(State* state, uint32_t group);

  Guarded<State> state_;
  std::atomic<Group*> groups_{nullptr};  // state's, once there are any
  std::atomic<uint64_t> forgotten_{0};
};

}  // namespace ems::server
