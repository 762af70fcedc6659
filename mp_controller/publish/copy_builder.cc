#include "mp_controller/publish/copy_builder.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/check.h"
#include "mp_controller/publish/slot_draw.h"

namespace ems::controller {
namespace {

constexpr double kLoadMax = 1.05;  // copies of a node / its share by capacity

struct Keeper {
  NodeId id;
  uint64_t key = 0;  // of its draws
  double inverse_weight = 0;
  size_t cap = 0;
  size_t count = 0;                // copies it has so far
  std::vector<uint32_t> domain{};  // one number a leading part of its path
  std::vector<uint16_t> kept{};    // slots
};

// Of two paths: how many leading parts are the same.
size_t Shared(const Keeper& a, const Keeper& b) {
  const size_t most = std::min(a.domain.size(), b.domain.size());
  size_t shared = 0;
  while (shared < most && a.domain[shared] == b.domain[shared]) ++shared;
  return shared;
}

class Builder final {
 public:
  Builder(const SlotTable& owners, std::span<const NodeInfo> live, size_t copies)
      : copies_(std::min(copies, SlotCopies::kMost)), chosen_(kSlotCount) {
    double all = 0;
    for (const NodeInfo& node : live) all += static_cast<double>(node.capacity_bytes);
    EMS_CHECK(live.empty() || all > 0, "{} nodes without capacity", live.size());
    for (const NodeInfo& node : live) {
      const double weight = static_cast<double>(node.capacity_bytes);
      const double share = static_cast<double>(kSlotCount * copies_) * (weight / all);
      keepers_.push_back({.id = node.id,
                          .key = DrawKeyOf(node.id),
                          .inverse_weight = 1 / weight,
                          .cap = static_cast<size_t>(std::ceil(share * kLoadMax)),
                          .domain = DomainOf(node)});
    }
    std::ranges::sort(keepers_, {}, &Keeper::id);
    closest_.assign(keepers_.size(), SIZE_MAX);
    for (const NodeId owner : owners.owners()) owner_.push_back(Find(owner));
  }

  // Who held a copy keeps it where nobody would be better placed.
  void Keep(const SlotCopies& previous) {
    for (uint16_t i = 0; i < kSlotCount && !previous.empty(); ++i) {
      for (const NodeId holder : previous.Of(SlotId(i))) {
        const size_t number = Find(holder);
        if (chosen_[i].size() == copies_ || number == keepers_.size() || !MayTake(i, number) ||
            !IsWellPlaced(i, number))
          continue;
        Choose(i, number);
        keepers_[number].kept.push_back(i);
      }
    }
  }

  // What is above a node's cap goes, the weakest claims first.
  void Shed() {
    for (size_t number = 0; number < keepers_.size(); ++number) {
      Keeper& keeper = keepers_[number];
      if (keeper.count <= keeper.cap) continue;
      const auto claim = [&](uint16_t slot) {
        return std::pair(DrawNumber(keeper.key, DrawSaltOf(SlotId(slot))), slot);
      };
      std::ranges::sort(keeper.kept, std::ranges::greater(), claim);
      for (size_t i = 0; keeper.count > keeper.cap; ++i) {
        std::erase(chosen_[keeper.kept[i]], number);
        --keeper.count;
      }
    }
  }

  void Fill() {
    for (uint16_t i = 0; i < kSlotCount; ++i)
      while (chosen_[i].size() < copies_ && FillOne(i)) {
      }
  }

  SlotCopies Result() const {
    SlotCopies copies;
    std::vector<NodeId> holders;
    for (uint16_t i = 0; i < kSlotCount; ++i) {
      holders.clear();
      for (const size_t number : chosen_[i]) holders.push_back(keepers_[number].id);
      copies.Set(SlotId(i), holders);
    }
    return copies;
  }

 private:
  std::vector<uint32_t> DomainOf(const NodeInfo& node) {
    const std::string& path = node.failure_domain.empty() ? node.host_id : node.failure_domain;
    std::vector<uint32_t> domain;
    for (size_t at = 0; at < path.size();) {
      at = std::min(path.find('/', at), path.size() - 1) + 1;
      const auto number = static_cast<uint32_t>(paths_.size());
      domain.push_back(paths_.try_emplace(path.substr(0, at), number).first->second);
    }
    return domain;
  }
  size_t Find(NodeId id) const {
    const auto it = std::ranges::lower_bound(keepers_, id, {}, &Keeper::id);
    return it != keepers_.end() && it->id == id ? static_cast<size_t>(it - keepers_.begin())
                                                : keepers_.size();
  }
  bool MayTake(uint16_t slot, size_t number) const {
    return number != owner_[slot] &&
           std::ranges::find(chosen_[slot], number) == chosen_[slot].end();
  }
  // How close it stands to those that have what is in the slot.
  size_t Closeness(uint16_t slot, size_t number) const {
    size_t close = 0;
    if (const size_t owner = owner_[slot]; owner < keepers_.size())
      close = Shared(keepers_[owner], keepers_[number]);
    for (const size_t other : chosen_[slot])
      close = std::max(close, Shared(keepers_[other], keepers_[number]));
    return close;
  }
  // The least closeness that any node has to this one.
  size_t LeastCloseTo(size_t number) {
    if (closest_[number] == SIZE_MAX) {
      for (size_t i = 0; i < keepers_.size(); ++i)
        if (i != number)
          closest_[number] = std::min(closest_[number], Shared(keepers_[i], keepers_[number]));
    }
    return closest_[number];
  }
  bool IsWellPlaced(uint16_t slot, size_t number) {
    const size_t close = Closeness(slot, number);
    const size_t owner = owner_[slot];
    size_t least = owner < keepers_.size() ? LeastCloseTo(owner) : 0;
    for (const size_t other : chosen_[slot]) least = std::max(least, LeastCloseTo(other));
    if (close <= least) return true;
    for (size_t i = 0; i < keepers_.size(); ++i)
      if (MayTake(slot, i) && Closeness(slot, i) < close) return false;
    return true;
  }
  void Choose(uint16_t slot, size_t number) {
    chosen_[slot].push_back(number);
    ++keepers_[number].count;
  }

  // False: there is nobody left.
  bool FillOne(uint16_t slot) {
    const uint64_t salt = DrawSaltOf(SlotId(slot));
    // In this order: apart, with room, and then the least draw, or the least load.
    size_t best = keepers_.size(), closeness = SIZE_MAX;
    bool room = false;
    double least = std::numeric_limits<double>::infinity();
    for (size_t i = 0; i < keepers_.size(); ++i) {
      const Keeper& keeper = keepers_[i];
      if (!MayTake(slot, i)) continue;
      const size_t close = Closeness(slot, i);
      if (close > closeness) continue;
      const bool has_room = keeper.count < keeper.cap;
      if (close == closeness && room && !has_room) continue;
      const int64_t number = DrawNumber(keeper.key, salt);
      const bool same_rank = close == closeness && room == has_room;
      if (same_rank && has_room &&
          static_cast<double>(number) * kDrawUnit * keeper.inverse_weight >= least)
        continue;
      const double value = has_room ? DrawOf(number, keeper.inverse_weight)
                                    : static_cast<double>(keeper.count) * keeper.inverse_weight;
      if (same_rank && value >= least) continue;
      best = i, closeness = close, room = has_room, least = value;
    }
    if (best == keepers_.size()) return false;
    Choose(slot, best);
    return true;
  }

  const size_t copies_;
  std::map<std::string, uint32_t> paths_;
  std::vector<Keeper> keepers_;              // by id
  std::vector<size_t> closest_;              // by keeper; SIZE_MAX: not computed yet
  std::vector<size_t> owner_;                // by slot: which keeper; behind the last: none
  std::vector<std::vector<size_t>> chosen_;  // by slot: keepers, in their order
};

}  // namespace

SlotCopies BuildCopies(const SlotCopies& previous, const SlotTable& owners,
                       std::span<const NodeInfo> live, size_t copies) {
  if (copies == 0 || live.size() < 2) return {};
  Builder builder(owners, live, copies);
  builder.Keep(previous);
  builder.Shed();
  builder.Fill();
  return builder.Result();
}

}  // namespace ems::controller
