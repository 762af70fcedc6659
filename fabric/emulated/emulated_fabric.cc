#include "fabric/emulated/emulated_fabric.h"

#include <utility>
#include <vector>

namespace ems::fabric {

Result<const EmulatedPath*> EmulatedFabric::Path(Plane plane, const Endpoint& initiator,
                                                 const Endpoint& target, Access access) {
  const PathKey key(plane, initiator, target, access);
  {
    auto parts = parts_.Lock();
    const auto known = parts->paths.find(key);
    if (known != parts->paths.end()) return known->second.get();
  }
  EMS_ASSIGN_OR_RETURN(const EmulatedRoute route,
                       topology_.Route(plane, initiator, target, access));
  auto parts = parts_.Lock();
  std::vector<EmulatedLink*> links;
  for (const RouteLink& link : route.links) {
    auto& made = parts->links[link.id];
    if (made == nullptr) made = std::make_unique<EmulatedLink>(link.bytes_per_s);
    links.push_back(made.get());
  }
  auto& path = parts->paths[key];
  if (path == nullptr) path = std::make_unique<EmulatedPath>(std::move(links), route.base_latency);
  return path.get();
}

}  // namespace ems::fabric
