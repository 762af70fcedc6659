#pragma once
// The state of a cluster as one JSON document: what the controller shows at /state and tells at
// /events.
//
// The keys of nodes, namespaces and models are those of emsctl --json. Names come from outside and
// stay what they are: whoever shows them has to escape them.
// Bound: kRowsMax of each kind; totals count all, and *_left_out says how many are not shown.
#include <cstdint>
#include <string>

namespace ems {
class DhtView;
namespace v1 {
class ListEventsReply;
class ListModelsReply;
class ListNamespacesReply;
class ListNodesReply;
}  // namespace v1
}  // namespace ems

namespace ems::controller {

inline constexpr int kRowsMax = 500;
inline constexpr uint32_t kEventsShown = 20;

// What the controller knew at one moment. All must outlive the call; `view` may be null.
struct ClusterFacts {
  const DhtView* view = nullptr;
  const v1::ListNodesReply* nodes = nullptr;
  const v1::ListNamespacesReply* namespaces = nullptr;
  const v1::ListModelsReply* models = nullptr;
  const v1::ListEventsReply* events = nullptr;  // may be null
};

// One line, without its end. Servers that are down come first, then those that are not well; those
// that have left come last. Cost: O(nodes + namespaces + models); may take milliseconds.
std::string ClusterJson(const ClusterFacts& facts);

}  // namespace ems::controller
