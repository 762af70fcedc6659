#pragma once
// ems::Status ⇄ grpc::Status: the codes are the same numbers, the classes are not convertible.
#include "common/status.h"

namespace grpc {
class Status;
}

namespace ems {
grpc::Status ToGrpc(const Status& status);
Status FromGrpc(const grpc::Status& status);
}  // namespace ems
