#include "mp_controller/view_builder.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <tuple>
#include <utility>

#include "common/check.h"
#include "common/hash.h"

namespace ems::controller {
namespace {

constexpr double kLoadMax = 1.05;  // slots of a node / its share by capacity

struct Seat {
  NodeId id;
  double weight = 0;
  double share = 0;            // 4096 × weight / all weights
  std::vector<SlotId> held{};  // slots it owned before
  size_t target = 0;           // slots it shall own
  size_t room = 0;             // target − slots it has so far
};

// Weighted rendezvous score −w / ln(u): the node with the highest score wins a slot with
// probability proportional to w.
double Score(const Seat& seat, SlotId slot) {
  std::array<std::byte, 6> key;
  for (size_t i = 0; i < 4; ++i) key[i] = static_cast<std::byte>(seat.id.value() >> (8 * i));
  for (size_t i = 0; i < 2; ++i) key[4 + i] = static_cast<std::byte>(slot.value() >> (8 * i));
  const double u = (static_cast<double>(Hash64(key) >> 11) + 0.5) * 0x1p-53;
  return -seat.weight / std::log(u);
}

std::vector<Seat> MakeSeats(std::vector<NodeWeight> live) {
  std::sort(live.begin(), live.end(),
            [](const NodeWeight& a, const NodeWeight& b) { return a.id < b.id; });
  double all = 0;
  for (const NodeWeight& node : live) all += static_cast<double>(node.capacity_bytes);
  EMS_CHECK(all > 0, "{} nodes without capacity", live.size());
  std::vector<Seat> seats;
  seats.reserve(live.size());
  for (const NodeWeight& node : live) {
    const double weight = static_cast<double>(node.capacity_bytes);
    seats.push_back({.id = node.id, .weight = weight, .share = kSlotCount * (weight / all)});
  }
  return seats;
}

// Gives each slot to the seat that held it; those of nodes that are gone are returned.
std::vector<SlotId> Seize(const SlotTable& previous, std::vector<Seat>* seats) {
  std::vector<SlotId> orphans;
  for (uint32_t i = 0; i < kSlotCount; ++i) {
    const SlotId slot(static_cast<uint16_t>(i));
    const NodeId owner = previous.owner(slot);
    const auto seat = std::lower_bound(seats->begin(), seats->end(), owner,
                                       [](const Seat& s, NodeId id) { return s.id < id; });
    if (seat != seats->end() && seat->id == owner) {
      seat->held.push_back(slot);
    } else {
      orphans.push_back(slot);
    }
  }
  return orphans;
}

// Largest remainder, but what a seat already holds comes first, so that rounding moves nothing, and
// what would push a seat above kLoadMax comes last.
void SetTargets(std::vector<Seat>* seats) {
  size_t given = 0;
  for (Seat& seat : *seats) {
    seat.target = static_cast<size_t>(seat.share);
    given += seat.target;
  }
  while (given < kSlotCount) {
    Seat* best = nullptr;
    const auto rank = [](const Seat& s) {
      const double next = static_cast<double>(s.target + 1);
      const bool fits = next <= s.share * kLoadMax;
      const bool holds = s.held.size() > s.target;
      const bool first = next < s.share + 1;
      return std::tuple(fits, holds && first, holds, s.share - static_cast<double>(s.target));
    };
    for (Seat& seat : *seats) {
      if (best == nullptr || rank(seat) > rank(*best)) best = &seat;
    }
    ++best->target;
    ++given;
  }
}

// Takes from each seat what it holds above its target, the slots it has the weakest claim to first:
// against those of the seats that are to have more. So one that was away is given the slots that it
// had.
void ShedSurplus(std::vector<Seat>* seats, std::vector<SlotId>* moving) {
  std::vector<const Seat*> takers;
  for (const Seat& seat : *seats)
    if (seat.held.size() < seat.target) takers.push_back(&seat);
  const auto claim = [&takers](const Seat& seat, SlotId slot) {
    double best = 0;
    for (const Seat* taker : takers) best = std::max(best, Score(*taker, slot));
    return best > 0 ? Score(seat, slot) / best : Score(seat, slot);
  };
  for (Seat& seat : *seats) {
    if (seat.held.size() > seat.target) {
      std::vector<std::pair<double, SlotId>> claims;
      for (const SlotId slot : seat.held) claims.emplace_back(claim(seat, slot), slot);
      std::sort(claims.begin(), claims.end());
      const size_t surplus = seat.held.size() - seat.target;
      for (size_t i = 0; i < surplus; ++i) moving->push_back(claims[i].second);
      seat.held.clear();
      for (size_t i = surplus; i < claims.size(); ++i) seat.held.push_back(claims[i].second);
    }
    seat.room = seat.target - seat.held.size();
  }
  std::sort(moving->begin(), moving->end());
}

}  // namespace

SlotTable BuildSlots(const SlotTable& previous, std::vector<NodeWeight> live) {
  SlotTable next;
  if (live.empty()) return next;
  std::vector<Seat> seats = MakeSeats(std::move(live));
  std::vector<SlotId> moving = Seize(previous, &seats);
  SetTargets(&seats);
  ShedSurplus(&seats, &moving);
  for (const Seat& seat : seats) {
    for (const SlotId slot : seat.held) next.set_owner(slot, seat.id);
  }
  for (const SlotId slot : moving) {
    Seat* best = nullptr;
    double best_score = 0;
    for (Seat& seat : seats) {
      if (seat.room == 0) continue;
      const double score = Score(seat, slot);
      if (best == nullptr || score > best_score) best = &seat, best_score = score;
    }
    EMS_CHECK(best != nullptr, "no room for slot {}", slot.value());
    next.set_owner(slot, best->id);
    --best->room;
  }
  return next;
}

}  // namespace ems::controller
