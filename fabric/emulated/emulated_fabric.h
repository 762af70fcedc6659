#pragma once
// All links of an emulated machine: gives out the paths between its endpoints, over which
// transfers share what the parts of the machine carry.
//
// EMULATED. In one process the links are shared by all users of one EmulatedFabric; processes
// do not share them: each has its own dies and paces what those move.
// Bound: a link and a path for each that was asked for, until the fabric goes.
#include <cstdint>
#include <map>
#include <memory>
#include <tuple>

#include "common/guarded.h"
#include "common/status.h"
#include "fabric/emulated/emulated_link.h"
#include "fabric/emulated/topology.h"

namespace ems::fabric {

// Threading: thread-safe.
class EmulatedFabric final {
 public:
  explicit EmulatedFabric(const EmulatedTopology& topology) : topology_(topology) {}
  EmulatedFabric(const EmulatedFabric&) = delete;
  EmulatedFabric& operator=(const EmulatedFabric&) = delete;

  const EmulatedTopology& topology() const { return topology_; }
  // Lives as long as the fabric; the same for the same question. Cost: O(log paths) from the second
  // time on. Errors: those of EmulatedTopology::Route
  Result<const EmulatedPath*> Path(Plane plane, const Endpoint& initiator, const Endpoint& target,
                                   Access access);

 private:
  using PathKey = std::tuple<Plane, Endpoint, Endpoint, Access>;
  struct Parts {
    std::map<LinkId, std::unique_ptr<EmulatedLink>> links;
    std::map<PathKey, std::unique_ptr<EmulatedPath>> paths;
  };
  const EmulatedTopology topology_;
  Guarded<Parts> parts_;
};

}  // namespace ems::fabric
