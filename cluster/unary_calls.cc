#include "cluster/unary_calls.h"

#include <grpcpp/grpcpp.h>

#include "cluster/control_channel.h"
#include "common/check.h"
#include "proto/status_codec.h"

namespace ems {

Status UnaryCalls::Call(Deadline deadline,
                        const std::function<grpc::Status(grpc::ClientContext*)>& call) {
  if (deadline.Passed()) return Error(StatusCode::kDeadlineExceeded, "no time left");
  DriveChannel(channel_.get(), deadline);
  grpc::ClientContext context;
  SetDeadline(deadline, &context);
  {
    auto state = state_.Lock();
    if (state->closed) return Error(StatusCode::kCancelled, "stopping");
    EMS_CHECK(state->contexts.insert(&context).second, "a context is in use twice");
  }
  const Status status = FromGrpc(call(&context));
  auto state = state_.Lock();
  EMS_CHECK(state->contexts.erase(&context) == 1, "a call has left that was not under way");
  return status;
}

void UnaryCalls::Close() {
  auto state = state_.Lock();
  state->closed = true;
  // Under the lock: a context goes as soon as its call has left the set.
  for (grpc::ClientContext* context : state->contexts) context->TryCancel();
}

}  // namespace ems
