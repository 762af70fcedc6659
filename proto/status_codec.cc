#include "proto/status_codec.h"

#include <grpcpp/support/status.h>

namespace ems {

grpc::Status ToGrpc(const Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(Message(status)));
}

Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return OkStatus();
  return Error(static_cast<StatusCode>(status.error_code()),
               std::string_view(status.error_message()));
}

}  // namespace ems
