#pragma once
// What members of the cluster say of themselves, as the controller shows it to operators: each
// (ListNodes), and their estimates of hit rates together (ListNamespaces).
#include <vector>

#include "mp_controller/membership.h"
#include "mp_controller/publish/drains.h"

namespace ems::v1 {
class ListNamespacesReply;
class NodeStatus;
}  // namespace ems::v1

namespace ems::controller {

// All that membership knows of it; slots and how long it has been behind are the caller's.
void ToProto(const MemberStatus& member, v1::NodeStatus* out);
void ToProto(const DrainStatus& drain, v1::NodeStatus* out);

// Adds one curve for each of the reply's namespaces that live members know one of: that of all of
// them together. Cost: O(curves), 32 a member at most.
void AddHitCurves(const std::vector<MemberStatus>& members, v1::ListNamespacesReply* reply);

}  // namespace ems::controller
