#pragma once
// Whether a cluster is well, of what its controller knows: the one rule for `emsctl status`,
// `emsctl doctor` and the controller's page. Pure.
#include <string_view>

namespace ems {

class DhtView;
namespace v1 {
class ListNodesReply;
class NodeStatus;
}  // namespace v1

enum class Health { kOk, kDegraded, kFrozen, kNoServers };

// "OK", "DEGRADED" …
std::string_view HealthWord(Health health);

// `view` may be null: there is none yet. Cost, of all below: O(nodes) at most.
Health HealthOf(const v1::ListNodesReply& nodes, const DhtView* view);

// One of `nodes` that makes the cluster DEGRADED: it is down, or one of the four below holds.
bool IsSick(const v1::NodeStatus& node, const v1::ListNodesReply& nodes, const DhtView* view);

// Of a server that is taken out, or not: "none", "draining", "drained".
std::string_view DrainWord(const v1::NodeStatus& node);
// Of a live server whose SSD tier does not work.
bool HasSickSsd(const v1::NodeStatus& node);
// Of a server that has not left: another controller, or a later state of this one, made its view.
bool IsAhead(const v1::NodeStatus& node);
// Of a server that owns slots: it has not installed the newest view, nor said so in time.
bool IsBehind(const v1::NodeStatus& node, const v1::ListNodesReply& nodes, const DhtView* view);
// Puts wait for it, and without an operator they may do so for ever.
bool IsWaitedForLong(const v1::NodeStatus& node, const v1::ListNodesReply& nodes);

}  // namespace ems
