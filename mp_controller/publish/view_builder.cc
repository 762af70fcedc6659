#include "mp_controller/publish/view_builder.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <queue>
#include <tuple>
#include <utility>

#include "common/check.h"
#include "mp_controller/publish/slot_draw.h"

namespace ems::controller {
namespace {

constexpr double kLoadMax = 1.05;  // slots of a node / its share by capacity

// A live node that slots are given to.
struct Bidder {
  NodeId id;
  double weight = 0;
  double share = 0;            // kSlotCount × weight / all weights
  std::vector<SlotId> held{};  // slots it owned before
  size_t target = 0;           // slots it shall own
  size_t room = 0;             // target − slots it has so far
};

// The draws of some nodes (slot_draw.h), with what they cost.
class Draws final {
 public:
  explicit Draws(BuildCost* cost) : cost_(*cost) {}

  void Add(const Bidder& bidder, size_t number) {
    lots_.push_back({DrawKeyOf(bidder.id), 1 / bidder.weight, kDrawUnit / bidder.weight, number});
  }
  bool empty() const { return lots_.empty(); }
  // The one added under `number` draws no longer.
  void Remove(size_t number) {
    const auto it = std::find_if(lots_.begin(), lots_.end(),
                                 [&](const Lot& lot) { return lot.number == number; });
    if (it != lots_.end()) lots_.erase(it);
  }

  struct Winner {
    size_t number = 0;
    double draw = 0;
  };
  // Of at least one. Of equal draws the one that was added first wins.
  Winner Least(SlotId slot) const {
    const uint64_t salt = DrawSaltOf(slot);
    const Lot* best = nullptr;
    double least = std::numeric_limits<double>::infinity();
    cost_.scores += lots_.size();
    for (const Lot& lot : lots_) {
      const int64_t number = DrawNumber(lot.key, salt);
      if (static_cast<double>(number) * lot.draw_per_number >= least) continue;
      const double draw = Draw(number, lot.inverse_weight);
      if (draw < least) best = &lot, least = draw;
    }
    EMS_CHECK(best != nullptr, "nobody draws for slot {}", slot.value());
    return {best->number, least};
  }
  double Of(const Bidder& bidder, SlotId slot) const {
    ++cost_.scores;
    return Draw(DrawNumber(DrawKeyOf(bidder.id), DrawSaltOf(slot)), 1 / bidder.weight);
  }

 private:
  struct Lot {
    uint64_t key = 0;
    double inverse_weight = 0;
    double draw_per_number = 0;  // at least
    size_t number = 0;
  };
  double Draw(int64_t number, double inverse_weight) const {
    ++cost_.logarithms;
    return DrawOf(number, inverse_weight);
  }

  BuildCost& cost_;
  std::vector<Lot> lots_;
};

std::vector<Bidder> MakeBidders(std::vector<NodeWeight> live) {
  std::sort(live.begin(), live.end(),
            [](const NodeWeight& a, const NodeWeight& b) { return a.id < b.id; });
  double all = 0;
  for (const NodeWeight& node : live) all += static_cast<double>(node.capacity_bytes);
  EMS_CHECK(all > 0, "{} nodes without capacity", live.size());
  std::vector<Bidder> bidders;
  bidders.reserve(live.size());
  for (const NodeWeight& node : live) {
    const double weight = static_cast<double>(node.capacity_bytes);
    bidders.push_back({.id = node.id, .weight = weight, .share = kSlotCount * (weight / all)});
  }
  return bidders;
}

// Gives each slot to the bidder that held it; those of nodes that are gone are returned.
std::vector<SlotId> Seize(const SlotTable& previous, std::vector<Bidder>* bidders) {
  std::vector<SlotId> orphans;
  for (uint32_t i = 0; i < kSlotCount; ++i) {
    const SlotId slot(static_cast<uint16_t>(i));
    const NodeId owner = previous.owner(slot);
    const auto bidder = std::lower_bound(bidders->begin(), bidders->end(), owner,
                                         [](const Bidder& s, NodeId id) { return s.id < id; });
    if (bidder != bidders->end() && bidder->id == owner) {
      bidder->held.push_back(slot);
    } else {
      orphans.push_back(slot);
    }
  }
  return orphans;
}

// Largest remainder, but what a bidder already holds comes first, so that rounding moves nothing,
// and what would push a bidder above kLoadMax comes last. Cost: O(nodes log nodes).
void SetTargets(std::vector<Bidder>* bidders) {
  const auto rank = [bidders](size_t number) {
    const Bidder& s = (*bidders)[number];
    const double next = static_cast<double>(s.target + 1);
    const bool fits = next <= s.share * kLoadMax;
    const bool holds = s.held.size() > s.target;
    const bool first = next < s.share + 1;
    // Of equal ones the first.
    return std::tuple(fits, holds && first, holds, s.share - static_cast<double>(s.target),
                      bidders->size() - number);
  };
  using Ranked = std::pair<decltype(rank(0)), size_t>;
  std::priority_queue<Ranked> next;
  size_t given = 0;
  for (size_t i = 0; i < bidders->size(); ++i) {
    Bidder& bidder = (*bidders)[i];
    bidder.target = static_cast<size_t>(bidder.share);
    given += bidder.target;
    next.emplace(rank(i), i);
  }
  EMS_CHECK(given <= kSlotCount && !bidders->empty(), "{} slots for {} nodes", given,
            bidders->size());
  for (; given < kSlotCount; ++given) {
    const size_t best = next.top().second;
    next.pop();
    ++(*bidders)[best].target;
    next.emplace(rank(best), best);
  }
}

// Takes from each bidder what it holds above its target, the slots it has the weakest claim to
// first: against those of the bidders that are to have more. So one that was away is given the
// slots that it had.
void ShedSurplus(std::vector<Bidder>* bidders, std::vector<SlotId>* moving, BuildCost* cost) {
  Draws takers(cost);
  for (size_t i = 0; i < bidders->size(); ++i)
    if ((*bidders)[i].held.size() < (*bidders)[i].target) takers.Add((*bidders)[i], i);
  const auto claim = [&takers](const Bidder& bidder, SlotId slot) {
    const double own = takers.Of(bidder, slot);
    return takers.empty() ? 1 / own : takers.Least(slot).draw / own;
  };
  for (Bidder& bidder : *bidders) {
    if (bidder.held.size() > bidder.target) {
      std::vector<std::pair<double, SlotId>> claims;
      for (const SlotId slot : bidder.held) claims.emplace_back(claim(bidder, slot), slot);
      std::sort(claims.begin(), claims.end());
      const size_t surplus = bidder.held.size() - bidder.target;
      for (size_t i = 0; i < surplus; ++i) moving->push_back(claims[i].second);
      bidder.held.clear();
      for (size_t i = surplus; i < claims.size(); ++i) bidder.held.push_back(claims[i].second);
    }
    EMS_CHECK(bidder.held.size() <= bidder.target);
    bidder.room = bidder.target - bidder.held.size();
  }
  std::sort(moving->begin(), moving->end());
}

// Each that has a holder of copies with room to the first of them, which has what was in it. The
// others are returned.
std::vector<SlotId> GiveToHolders(const std::vector<SlotId>& moving, const SlotCopies& copies,
                                  std::vector<Bidder>* bidders, SlotTable* next) {
  if (copies.empty()) return moving;
  std::vector<SlotId> others;
  for (const SlotId slot : moving) {
    Bidder* heir = nullptr;
    for (const NodeId holder : copies.Of(slot)) {
      const auto bidder = std::lower_bound(bidders->begin(), bidders->end(), holder,
                                           [](const Bidder& s, NodeId id) { return s.id < id; });
      if (bidder == bidders->end() || bidder->id != holder || bidder->room == 0) continue;
      heir = &*bidder;
      break;
    }
    if (heir == nullptr) {
      others.push_back(slot);
    } else {
      next->set_owner(slot, heir->id);
      --heir->room;
    }
  }
  return others;
}

// Each to the bidder with room that wins it.
void GiveOut(const std::vector<SlotId>& moving, std::vector<Bidder>* bidders, SlotTable* next,
             BuildCost* cost) {
  Draws draws(cost);
  for (size_t i = 0; i < bidders->size(); ++i)
    if ((*bidders)[i].room > 0) draws.Add((*bidders)[i], i);
  for (const SlotId slot : moving) {
    const size_t winner = draws.Least(slot).number;
    Bidder& bidder = (*bidders)[winner];
    EMS_CHECK(bidder.room > 0, "node {} gets more slots than its share", bidder.id.value());
    next->set_owner(slot, bidder.id);
    if (--bidder.room == 0) draws.Remove(winner);
  }
}

}  // namespace

SlotTable BuildSlots(const SlotTable& previous, std::vector<NodeWeight> live, BuildCost* cost,
                     const SlotCopies& copies) {
  SlotTable next;
  if (live.empty()) return next;
  BuildCost unasked;
  if (cost == nullptr) cost = &unasked;
  std::vector<Bidder> bidders = MakeBidders(std::move(live));
  std::vector<SlotId> moving = Seize(previous, &bidders);
  SetTargets(&bidders);
  ShedSurplus(&bidders, &moving, cost);
  for (const Bidder& bidder : bidders) {
    for (const SlotId slot : bidder.held) next.set_owner(slot, bidder.id);
  }
  GiveOut(GiveToHolders(moving, copies, &bidders, &next), &bidders, &next, cost);
  EMS_CHECK(next.CountOf(kNoNode) == 0, "{} slots have no owner", next.CountOf(kNoNode));
  return next;
}

SlotTable BuildSlotsOf(const SlotTable& previous, std::span<const NodeInfo> live,
                       const SlotCopies& copies) {
  std::vector<NodeWeight> weights;
  for (const NodeInfo& node : live) weights.push_back({node.id, node.capacity_bytes});
  return BuildSlots(previous, std::move(weights), nullptr, copies);
}

}  // namespace ems::controller
