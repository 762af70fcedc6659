#pragma once
// A member of the cluster as the controller shows it to operators (ListNodes).
#include "mp_controller/membership.h"

namespace ems::v1 {
class NodeStatus;
}  // namespace ems::v1

namespace ems::controller {

// All that membership knows of it; slots and how long it has been behind are the caller's.
void ToProto(const MemberStatus& member, v1::NodeStatus* out);

}  // namespace ems::controller
