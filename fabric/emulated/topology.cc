#include "fabric/emulated/topology.h"

#include <algorithm>
#include <utility>

#include "common/check.h"

namespace ems::fabric {
namespace {

constexpr uint32_t kCountMax = 65536;

using Kind = Endpoint::Kind;

Reach ReachOf(const Endpoint& a, const Endpoint& b) {
  if (a.node != b.node) return Reach::kInterNode;
  const bool same_package = a.kind == Kind::kDie && b.kind == Kind::kDie && a.unit == b.unit;
  return same_package ? Reach::kSamePackage : Reach::kIntraNode;
}

LinkEnds EndsOf(const Endpoint& a, const Endpoint& b) {
  const int cpus = (a.kind == Kind::kCpu ? 1 : 0) + (b.kind == Kind::kCpu ? 1 : 0);
  return cpus == 0 ? LinkEnds::kNpuNpu : cpus == 1 ? LinkEnds::kNpuCpu : LinkEnds::kCpuCpu;
}

bool IsProcessor(const Endpoint& endpoint) {
  return endpoint.kind == Kind::kDie || endpoint.kind == Kind::kCpu;
}

}  // namespace

std::string Endpoint::ToString() const {
  switch (kind) {
    case Kind::kDie:
      return fmt::format("node {} NPU {} die {}", node, unit, die);
    case Kind::kCpu:
      return fmt::format("node {} CPU {}", node, unit);
    case Kind::kEvs:
      return fmt::format("EVS of node {}", node);
    case Kind::kObs:
      return "OBS";
  }
  return "?";
}

uint64_t EmulatedRoute::bytes_per_s() const {
  uint64_t least = 0;
  for (const RouteLink& link : links)
    least = least == 0 ? link.bytes_per_s : std::min(least, link.bytes_per_s);
  return least;
}

Result<EmulatedTopology> EmulatedTopology::Create(const Shape& shape,
                                                  const EmulatedLinkModel& model) {
  for (const auto& [count, what] :
       {std::pair(shape.nodes, "nodes"), std::pair(shape.npus_per_node, "NPUs a node"),
        std::pair(shape.dies_per_npu, "dies an NPU"),
        std::pair(shape.cpus_per_node, "CPUs a node")}) {
    if (count == 0 || count > kCountMax)
      return Error(StatusCode::kInvalidArgument, "a machine of {} {}: 1 to {}", count, what,
                   kCountMax);
  }
  return EmulatedTopology(shape, model);
}

Endpoint EmulatedTopology::DieAt(uint64_t i) const {
  EMS_CHECK(i < dies(), "die {} of {}", i, dies());
  const uint64_t npu = i / shape_.dies_per_npu;
  return Endpoint::Die(static_cast<uint32_t>(npu / shape_.npus_per_node),
                       static_cast<uint32_t>(npu % shape_.npus_per_node),
                       static_cast<uint32_t>(i % shape_.dies_per_npu));
}

Status EmulatedTopology::Check(const Endpoint& endpoint) const {
  bool there = endpoint.node < shape_.nodes;
  if (endpoint.kind == Kind::kDie) {
    there = there && endpoint.unit < shape_.npus_per_node && endpoint.die < shape_.dies_per_npu;
  } else if (endpoint.kind == Kind::kCpu) {
    there = there && endpoint.unit < shape_.cpus_per_node && endpoint.die == 0;
  } else {
    there = there && endpoint.unit == 0 && endpoint.die == 0;
  }
  if (there) return OkStatus();
  return Error(StatusCode::kInvalidArgument,
               "no {} in a machine of {} nodes with {} NPUs of {} dies and {} CPUs",
               endpoint.ToString(), shape_.nodes, shape_.npus_per_node, shape_.dies_per_npu,
               shape_.cpus_per_node);
}

Result<EmulatedRoute> EmulatedTopology::Route(Plane plane, const Endpoint& initiator,
                                              const Endpoint& target, Access access) const {
  EMS_RETURN_IF_ERROR(Check(initiator));
  EMS_RETURN_IF_ERROR(Check(target));
  const auto refused = [&](std::string_view why) {
    return Error(StatusCode::kInvalidArgument, "{} does not join {} with {}: {}", PlaneName(plane),
                 initiator.ToString(), target.ToString(), why);
  };
  if (!IsProcessor(initiator)) return refused("storage transfers nothing by itself");
  if (plane == Plane::kEvs || plane == Plane::kObs) {
    if (target.kind != (plane == Plane::kEvs ? Kind::kEvs : Kind::kObs))
      return refused("it leads to its storage alone");
    if (plane == Plane::kEvs && target.node != initiator.node)
      return refused("a volume belongs to its node");
    return OverNic(plane, initiator, target, access);
  }
  if (!IsProcessor(target)) return refused("it does not lead to storage");
  if (plane == Plane::kVpc) return OverNic(plane, initiator, target, access);
  if (plane == Plane::kRdma && (initiator.kind != Kind::kDie || target.kind != Kind::kDie))
    return refused("NPUs alone are on it");
  if (initiator == target) {
    if (initiator.kind != Kind::kDie) return refused("memory of one CPU takes no link");
    const RouteLink hbm{{LinkId::Kind::kHbm, initiator, 0}, model_.Cap(LinkCap::kDieHbm)};
    return EmulatedRoute{{hbm}, Duration::zero()};
  }
  if (plane == Plane::kUb) return OverUb(initiator, target, access);

  const Endpoint& from = access == Access::kRead ? target : initiator;
  const Endpoint& to = access == Access::kRead ? initiator : target;
  const uint64_t cap = model_.Cap(LinkCap::kDieRdma);
  const LinkFigures figures =
      model_.Link(plane, LinkEnds::kNpuNpu, access, ReachOf(initiator, target));
  return EmulatedRoute{
      {{{LinkId::Kind::kRdmaOut, from, 0}, cap}, {{LinkId::Kind::kRdmaIn, to, 0}, cap}},
      figures.base_latency()};
}

EmulatedRoute EmulatedTopology::OverUb(const Endpoint& initiator, const Endpoint& target,
                                       Access access) const {
  const Endpoint& from = access == Access::kRead ? target : initiator;
  const Endpoint& to = access == Access::kRead ? initiator : target;
  const Reach reach = ReachOf(initiator, target);
  const LinkEnds ends = EndsOf(initiator, target);
  const LinkFigures figures = model_.Link(Plane::kUb, ends, access, reach);
  EmulatedRoute route{{}, figures.base_latency()};
  if (reach == Reach::kSamePackage) {
    route.links.push_back({{LinkId::Kind::kPackageOut, from, 0}, figures.bytes_per_s});
    return route;
  }
  if (ends != LinkEnds::kCpuCpu) {
    // The die that moves the bytes is measured; between NPU and CPU it is always the NPU.
    const Endpoint& engine = initiator.kind == Kind::kDie ? initiator : target;
    const uint32_t variant = static_cast<uint32_t>(ends) * 16 + static_cast<uint32_t>(access) * 4 +
                             static_cast<uint32_t>(reach);
    route.links.push_back({{LinkId::Kind::kEngine, engine, variant}, figures.bytes_per_s});
  }
  const auto cap = [this](const Endpoint& endpoint) {
    return model_.Cap(endpoint.kind == Kind::kDie ? LinkCap::kDieUb : LinkCap::kCpuUb);
  };
  route.links.push_back({{LinkId::Kind::kUbOut, from, 0}, cap(from)});
  route.links.push_back({{LinkId::Kind::kUbIn, to, 0}, cap(to)});
  return route;
}

// Through the cards of the nodes (CM §3.3.2); storage hangs on the same card (CM §4.4.1). What the
// bytes pass between card and NPU is faster than the card and left out.
EmulatedRoute EmulatedTopology::OverNic(Plane plane, const Endpoint& initiator,
                                        const Endpoint& target, Access access) const {
  const auto card = [](const Endpoint& of) { return Endpoint{Kind::kCpu, of.node, 0, 0}; };
  const LinkFigures figures =
      model_.Link(plane, EndsOf(initiator, target), access, ReachOf(initiator, target));
  const uint64_t cap = model_.Cap(LinkCap::kNodeNic);
  EmulatedRoute route{{}, figures.base_latency()};
  if (plane == Plane::kObs)
    route.links.push_back({{LinkId::Kind::kBucket, target, 0}, model_.Cap(LinkCap::kObsBucket)});
  if (plane != Plane::kVpc) {
    route.links.push_back({{access == Access::kRead ? LinkId::Kind::kNicIn : LinkId::Kind::kNicOut,
                            card(initiator), 0},
                           cap});
    return route;
  }
  const Endpoint& from = access == Access::kRead ? target : initiator;
  const Endpoint& to = access == Access::kRead ? initiator : target;
  route.links.push_back({{LinkId::Kind::kNicOut, card(from), 0}, cap});
  route.links.push_back({{LinkId::Kind::kNicIn, card(to), 0}, cap});
  return route;
}

}  // namespace ems::fabric
