#include "cluster/unary_calls.h"

#include <grpcpp/grpcpp.h>

#include "cluster/control_channel.h"
#include "cluster/view_cache.h"
#include "common/check.h"
#include "proto/cluster_metadata.h"
#include "proto/status_codec.h"

namespace ems {

Status UnaryCalls::Call(Deadline deadline,
                        const std::function<grpc::Status(grpc::ClientContext*)>& call) {
  if (deadline.Passed()) return Error(StatusCode::kDeadlineExceeded, "no time left");
  DriveChannel(channel_.get(), deadline);
  grpc::ClientContext context;
  SetDeadline(deadline, &context);
  if (joined_ != nullptr) AskCluster(joined_->cluster(), &context);
  {
    auto state = state_.Lock();
    if (state->closed) return Error(StatusCode::kCancelled, "stopping");
    EMS_CHECK(state->contexts.insert(&context).second, "a context is in use twice");
  }
  const Status status = FromGrpc(call(&context));
  {
    auto state = state_.Lock();
    EMS_CHECK(state->contexts.erase(&context) == 1, "a call has left that was not under way");
  }
  if (!status.ok() || joined_ == nullptr) return status;
  return joined_->Join(AnsweredBy(context));
}

void UnaryCalls::Close() {
  auto state = state_.Lock();
  state->closed = true;
  // Under the lock: a context goes as soon as its call has left the set.
  for (grpc::ClientContext* context : state->contexts) context->TryCancel();
}

}  // namespace ems
